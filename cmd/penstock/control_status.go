// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/reports"
)

// newControlStatus returns the command that shows what each region has, and what is not published.
// The command calls the API.
func newControlStatus() *cobra.Command {
	c := new(controlCommand)
	return c.command("status", "Show what the Redis of each region has, and what is not published, and why", noArgs, func(cmd *cobra.Command, _ []string) error {
		if err := c.printRegions(cmd.Context(), cmd.OutOrStdout()); err != nil {
			return err
		}
		return c.printUnpublished(cmd.Context(), cmd.OutOrStdout())
	})
}

// printUnpublished prints what is not published because its rows are not valid.
func (c *controlClient) printUnpublished(ctx context.Context, out io.Writer) error {
	table, query, count := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), url.Values{"limit": {fmt.Sprint(reports.RowsMax)}}, 0
	for {
		var page struct {
			Unpublished []ledger.Unpublished
			Next        string
		}
		if _, err := c.send(ctx, http.MethodGet, "/v1/unpublished?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		for _, u := range page.Unpublished {
			if count++; count == 1 {
				fmt.Fprintln(table, "NOT PUBLISHED\tSINCE\tWHY")
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", quoteUnprintable(u.Kind+":"+u.ID), u.Since.Format(time.RFC3339), quoteUnprintable(u.Problem))
		}
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	if count == 0 {
		_, err := fmt.Fprintln(out, "all rows are valid")
		return err
	}
	return table.Flush()
}
