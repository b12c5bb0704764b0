// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/policyfile"
)

// newControlEvents returns the command that prints events of the database. The command calls the
// API.
func newControlEvents() *cobra.Command {
	c, since, most, filters := new(controlCommand), "", 0, map[string]*string{}
	cmd := c.command("events", "Print what nodes reported, the newest first, as one JSON object for each event", noArgs, func(cmd *cobra.Command, _ []string) error {
		span, err := policyfile.Span(since)
		if err != nil || span <= 0 {
			return fmt.Errorf("--since %q is no span: write 2h or 30d", since)
		}
		query := url.Values{"from": {time.Now().Add(-span).UTC().Format(time.RFC3339)}}
		for name, value := range filters {
			if *value != "" {
				query.Set(name, *value)
			}
		}
		for left := most; left > 0; {
			query.Set("limit", fmt.Sprint(min(left, reports.RowsMax)))
			var page struct {
				Events []json.RawMessage
				Next   string
			}
			if _, err := c.send(cmd.Context(), http.MethodGet, "/v1/events?"+query.Encode(), nil, &page); err != nil {
				return err
			}
			for _, text := range page.Events {
				fmt.Fprintf(cmd.OutOrStdout(), "%s\n", text)
			}
			if left -= len(page.Events); page.Next == "" {
				return nil
			}
			query.Set("after", page.Next)
		}
		return nil
	})
	cmd.Example = "  penstock control events --client header.x-user:ann --since 2h"
	flags := cmd.Flags()
	for name, help := range map[string]string{"client": "only this `CLIENT`", "rule": "only this `RULE`", "kind": "only denied, admitted, degraded or dropped",
		"region": "only nodes of the region of this `NAME`"} {
		filters[name] = flags.String(name, "", help)
	}
	flags.StringVar(&since, "since", "1d", "of how long, such as 2h or 30d")
	flags.IntVarP(&most, "number", "n", 100, "how many at most")
	return cmd
}

// newControlForget returns the command that removes a client's name from events, usage and denials.
// The command calls the API.
func newControlForget() *cobra.Command {
	c := new(controlCommand)
	cmd := c.addReasonFlag(c.command("forget CLIENT", "Remove a client's name from events, usage and denials; sums stay", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string) error {
			var f ledger.Forgotten
			if _, err := c.sendJSON(cmd.Context(), http.MethodPost, clientPath(args[0])+"/forgetting", map[string]any{"reason": c.reason}, &f); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d events, %d rows of usage and %d of denials have no name now\n", f.Events, f.Usage, f.Denials)
			return err
		}))
	cmd.Long = "Remove a client's name from events, usage and denials, and delete its notices; sums stay. The record of the client is another matter:\n" +
		"penstock client forget CLIENT --control URL removes it."
	return cmd
}
