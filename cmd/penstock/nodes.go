// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/fleet"
)

// nodesCommand returns the command that prints the nodes.
func (a *admin) nodesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "nodes", Short: "Print the nodes that count in the same Redis, their policies and what is wrong with them",
		Long: "Print the nodes that count in the same Redis: since when each runs, when it was last heard of, its policies with their\n" +
			"versions, and its problems. A node that was not heard of for 25 seconds is silent, and no longer listed after 10 minutes.\n" +
			"The exit status is 0 also if a node has a problem.", Args: noArgs}
	asJSON := cmd.Flags().Bool("json", false, "print JSON, for programs")
	thisNode := scopeFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.show(cmd, "nodes", scope(*thisNode), *asJSON, printNodes)
	}
	return cmd
}

// printNodes prints the reply as a table, with a line for each problem below.
func printNodes(out io.Writer, reply []byte) error {
	var all fleet.Nodes
	if err := json.Unmarshal(reply, &all); err != nil {
		return fmt.Errorf("reading the nodes: %w", err)
	}
	if len(all.Nodes) == 0 {
		fmt.Fprintln(out, "no node has been heard of")
	} else {
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "NODE\tFRONT\tSINCE\tSEEN\tSTATE\tPOLICIES")
		for i := range all.Nodes {
			n := &all.Nodes[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s ago\t%s\t%s\n", quoteUnprintable(n.Name), quoteUnprintable(n.Front), n.Since.UTC().Format(time.RFC3339),
				(time.Duration(n.SeenMs) * time.Millisecond).Round(time.Second), quoteUnprintable(string(n.State)), versionsOf(n))
		}
		_ = table.Flush()
	}
	for i := range all.Nodes {
		for _, problem := range all.Nodes[i].Problems {
			fmt.Fprintf(out, "%s: %s\n", quoteUnprintable(all.Nodes[i].Name), quoteUnprintable(problem))
		}
	}
	if all.Unreadable > 0 {
		fmt.Fprintf(out, "records that cannot be read, perhaps of a later version: %d\n", all.Unreadable)
	}
	return nil
}

// versionsOf returns the policies of a node with their versions.
func versionsOf(n *fleet.NodeState) string {
	var all []string
	for _, p := range n.Policies {
		text := quoteUnprintable(p.Name) + " " + quoteUnprintable(p.Version)
		if p.Region != "" {
			text += " in " + quoteUnprintable(p.Region)
		}
		all = append(all, text)
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}
