// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// topCommand returns the command that prints the clients denied most often.
func (a *admin) topCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "top", Short: "Print the clients denied most often (approximate; counts halve hourly)",
		Long: "Print the clients that the Caddy that is asked denied most often, most denials first. Counts halve hourly, and only some\n" +
			"clients are counted: a count is exact, or a range that the true number lies in.", Args: noArgs}
	n := cmd.Flags().IntP("number", "n", 20, "how many clients")
	asJSON := cmd.Flags().Bool("json", false, "print JSON, for programs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		reply, err := a.ask(cmd.Context(), http.MethodGet, "top", url.Values{"n": {fmt.Sprint(*n)}})
		if err != nil {
			return err
		}
		if *asJSON {
			_, err = cmd.OutOrStdout().Write(reply)
			return err
		}
		return printTop(cmd.OutOrStdout(), reply)
	}
	return cmd
}

// printTop prints the reply as a table.
func printTop(out io.Writer, reply []byte) error {
	var top struct {
		Clients []struct {
			Policy, Client string
			Refused, Over  uint64
		}
	}
	if err := json.Unmarshal(reply, &top); err != nil {
		return fmt.Errorf("reading the clients denied most often: %w", err)
	}
	if len(top.Clients) == 0 {
		_, err := fmt.Fprintln(out, "no client was denied")
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DENIED\tPOLICY\tCLIENT")
	for _, c := range top.Clients {
		denied := fmt.Sprint(c.Refused)
		if c.Over > 0 {
			denied = fmt.Sprintf("%d to %d", c.Refused-min(c.Over, c.Refused), c.Refused)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", denied, c.Policy, c.Client)
	}
	return table.Flush()
}
