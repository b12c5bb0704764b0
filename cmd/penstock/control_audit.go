// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/ledger"
)

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
