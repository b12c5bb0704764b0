// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/fleet"
)

// scopeFlag adds the flag that restricts the answer to one node.
func scopeFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("this-node", false, "only the process that is asked, without Redis")
}

// scope returns the query that limits an answer to the asked node if thisNode is true, and an empty
// query otherwise.
func scope(thisNode bool) url.Values {
	if thisNode {
		return url.Values{"scope": {"node"}}
	}
	return url.Values{}
}

// topCommand returns the command that prints the rules and clients with most denials.
func (a *admin) topCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "top", Short: "Print the rules and clients with most denials, on all nodes",
		Long: "Print the rules and clients with most denials, on all nodes that count in the same Redis. Rules are counted since\n" +
			"each process began. Counts of clients halve hourly, and only some clients are counted: a count is exact, or a range that\n" +
			"the true number lies in. What a filter in Envoy decides by itself is not counted.\n\n" +
			"With --control, print the clients with most denials of any span, exactly, with what filters report.", Args: noArgs,
		Example: "  penstock top\n  penstock top --control https://control:7070 --since 30d --rule api"}
	var past violators
	past.register(cmd)
	n := cmd.Flags().IntP("number", "n", 20, "how many clients, and how many rules")
	asJSON := cmd.Flags().Bool("json", false, "print JSON, for programs")
	thisNode := scopeFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := past.check(cmd); err != nil {
			return err
		}
		if past.control.given() {
			return past.print(cmd.Context(), cmd.OutOrStdout(), *n, *asJSON)
		}
		query := scope(*thisNode)
		query.Set("n", fmt.Sprint(*n))
		return a.show(cmd, "top", query, *asJSON, printTop)
	}
	return cmd
}

// printTop prints the reply as two tables.
func printTop(out io.Writer, reply []byte) error {
	var top fleet.Top
	if err := json.Unmarshal(reply, &top); err != nil {
		return fmt.Errorf("reading the denials: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(top.Rules) > 0 {
		fmt.Fprintln(table, "DENIED\tADMITTED\tDENIED/MIN\tADMITTED/MIN\tPOLICY\tRULE")
		for _, r := range top.Rules {
			fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%s\t%s\n", r.Denied, r.Admitted, r.DeniedMinute, r.AdmittedMinute, quoteUnprintable(r.Policy), quoteUnprintable(r.Rule))
		}
		fmt.Fprintln(table)
		_ = table.Flush()
	}
	if len(top.Clients) == 0 {
		_, err := fmt.Fprintln(out, "no client was denied")
		return err
	}
	fmt.Fprintln(table, "DENIED\tPOLICY\tCLIENT")
	for _, c := range top.Clients {
		denied := fmt.Sprint(c.Denied)
		if c.Over > 0 {
			denied = fmt.Sprintf("%d to %d", c.Denied-min(c.Over, c.Denied), c.Denied)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", denied, quoteUnprintable(c.Policy), quoteUnprintable(c.Client))
	}
	return table.Flush()
}
