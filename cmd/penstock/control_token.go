// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
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
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", "who uses the token, for the history; required")
	flags.StringVar(&role, "role", string(ledger.Viewer), "viewer, support, editor, admin, or node for what sends events and usage")
	flags.StringVar(&span, "for", "90d", "how long it is valid, at most 730d")
	flags.StringVar(&reason, "reason", "", "why, for the history; required")
	return cmd
}
