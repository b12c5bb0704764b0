// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/api"
	"github.com/penstock/penstock/internal/control/database"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/policyfile"
)

// withDatabase runs do with the database that the flags name, whose schema must be the one that this
// program knows.
func (f *controlFlags) withDatabase(ctx context.Context, do func(*pgxpool.Pool) error) error {
	address, err := f.databaseAddress()
	if err != nil {
		return err
	}
	pool, err := database.Open(ctx, address)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := database.Check(ctx, pool); err != nil {
		return err
	}
	return do(pool)
}

// withLedger runs do with the ledger of the database that the flags name.
func (f *controlFlags) withLedger(ctx context.Context, do func(*ledger.Ledger) error) error {
	return f.withDatabase(ctx, func(pool *pgxpool.Pool) error { return do(&ledger.Ledger{Pool: pool}) })
}

// newControlToken returns the command that makes a token directly in the database, without a token
// of the API.
func newControlToken() *cobra.Command {
	f := new(controlFlags)
	var name, role, span, reason string
	cmd := &cobra.Command{Use: "token", Short: "Make a token of the API in the database, and print it once", Args: noArgs,
		Example: "  penstock control token --name console --role viewer --for 30d --reason \"a page for support\"",
		RunE: func(cmd *cobra.Command, _ []string) error {
			life, err := policyfile.Span(span)
			if err != nil {
				return fmt.Errorf("--for %q %w", span, err)
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

// newControlAudit returns the commands of the audit trail.
func newControlAudit() *cobra.Command {
	f := new(controlFlags)
	verify := &cobra.Command{Use: "verify", Short: "Check that no change in the audit trail was altered, added or removed", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return f.withLedger(cmd.Context(), func(l *ledger.Ledger) error {
				began := time.Now()
				v, broken, err := l.Verify(cmd.Context())
				if err != nil {
					return err
				}
				if broken != "" {
					return fmt.Errorf("%s; the %d before it are unaltered", broken, v.Changes)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d changes are as they were written (%v); the last has the hash %x\n", v.Changes,
					time.Since(began).Round(time.Millisecond), v.Hash)
				return err
			})
		}}
	f.registerDatabase(verify)
	cmd := &cobra.Command{Use: "audit", Short: "Check the audit trail", Args: noArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(verify)
	return cmd
}

// newControlOpenAPI returns the command that prints the description of the API.
func newControlOpenAPI() *cobra.Command {
	return &cobra.Command{Use: "openapi", Short: "Print the OpenAPI document of the API", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := json.MarshalIndent(api.New(api.Options{}).OpenAPI(), "", "  ")
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			}
			return err
		}}
}
