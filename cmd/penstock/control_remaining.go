// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// newControlRemaining returns the command that prints what a client has left of its limits.
func newControlRemaining() *cobra.Command {
	c := new(controlCommand)
	var which counterFlags
	var region regionFlag
	asJSON := false
	cmd := c.command("remaining CLIENT", "Print what a client has left of its limits, without charging", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		query := which.query()
		if region != "" {
			query.Set("region", string(region))
		}
		var reply json.RawMessage
		if _, err := c.send(cmd.Context(), http.MethodGet, clientPath(args[0])+"/remaining?"+query.Encode(), nil, &reply); err != nil {
			return err
		}
		if err := warnOfGaps(cmd.ErrOrStderr(), reply); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), reply)
		}
		var report usageReport
		if err := json.Unmarshal(reply, &report); err != nil {
			return err
		}
		return report.print(cmd.OutOrStdout(), time.Now())
	})
	cmd.Long = "Print the limits of the policies in force on all nodes that count the client, with its record and its tier, and what is left of each.\n" +
		"The control plane reads the counters in its Redis. Units that a process has leased count as used."
	cmd.Example = "  penstock control remaining user:u_42 --policy shop"
	which.register(cmd.Flags())
	region.register(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}
