// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/ledger"
)

// newControlToken returns the command that makes a token directly in the database, without a token
// of the API.
func newControlToken() *cobra.Command {
	f := new(controlFlags)
	var name, role, span, reason string
	cmd := &cobra.Command{Use: "token", Short: "Make a token of the API in the database, and print it once", Args: noArgs,
		Example: "  penstock control token --name console --role viewer --for 30d --reason \"a page for support\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			life, err := parseSpan("for", span)
			if err != nil {
				return err
			}
			return f.withLedger(cmd.Context(), func(l *ledger.Ledger) error {
				secret, _, err := l.NewToken(cmd.Context(), ledger.Actor{Name: currentUser(), Origin: "penstock control token"}, name, ledger.Role(role), time.Now().Add(life), reason)
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), secret)
				}
				return err
			})
		}}
	f.registerDatabase(cmd)
	cmd.AddCommand(newTokenList(), newTokenRevoke())
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", "who uses the token, for the history; required")
	flags.StringVar(&role, "role", string(ledger.Viewer), "viewer, support, editor, admin, or node for what sends events and usage")
	flags.StringVar(&span, "for", "90d", "how long it is valid, at most 730d")
	flags.StringVar(&reason, "reason", "", "why, for the history; required")
	return cmd
}

// newTokenList returns the command that lists the tokens. The command calls the API.
func newTokenList() *cobra.Command {
	c := new(controlCommand)
	return c.command("list", "List the tokens, without their secrets", noArgs, func(cmd *cobra.Command, _ []string) error {
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "TOKEN\tNAME\tROLE\tCREATED BY\tEXPIRES\tREVOKED")
		for after := ""; ; {
			var page struct {
				Tokens []ledger.Token
				Next   string
			}
			if _, err := c.send(cmd.Context(), http.MethodGet, "/v1/tokens?after="+url.QueryEscape(after), nil, &page); err != nil {
				return err
			}
			for _, t := range page.Tokens {
				revoked := "-"
				if t.RevokedAt != nil {
					revoked = t.RevokedAt.Format(time.RFC3339)
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Token, quoteUnprintable(t.Name), t.Role, quoteUnprintable(t.CreatedBy),
					t.ExpiresAt.Format(time.RFC3339), revoked)
			}
			if after = page.Next; after == "" {
				return table.Flush()
			}
		}
	})
}

// newTokenRevoke returns the command that revokes a token. The command calls the API.
func newTokenRevoke() *cobra.Command {
	c := new(controlCommand)
	return c.addReasonFlag(c.command("revoke TOKEN", "Revoke the token with this identifier, from now on", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		_, err := c.send(cmd.Context(), http.MethodDelete, "/v1/tokens/"+url.PathEscape(args[0])+"?reason="+url.QueryEscape(c.reason), nil, nil)
		return err
	}))
}
