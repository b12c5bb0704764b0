// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
)

// clientEdits.list returns the command that prints the clients that have a record.
func (c *clientEdits) list() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "Print the clients that have a record in the directory, page by page", Args: noArgs,
		Long: "Print the clients that have a record in the directory, page by page. Redis keeps the records in no order, so the pages have\n" +
			"none. All keys of Redis are looked at, up to 1,000 at a time: its user needs the right +scan.",
		Example: "  penstock client list --blocked\n  penstock client list --kind user -n 1000 --json"}
	var query directory.ListQuery
	flags := cmd.Flags()
	flags.StringVar(&query.Kind, "kind", "", "only clients of this kind: user, api_key, tenant, ip, header.NAME and so on")
	flags.BoolVar(&query.Blocked, "blocked", false, "only clients that are blocked now")
	flags.IntVarP(&query.Most, "number", "n", 100, "about how many clients, up to 1000")
	flags.StringVar(&query.After, "after", "", "begin at the place that the previous page printed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := c.collect(cmd.Context(), query)
		if err != nil {
			return err
		}
		return c.print(cmd.OutOrStdout(), all, func(w io.Writer) { writeListing(w, all, time.Now()) })
	}
	return cmd
}

// clientEdits.collect returns a page. If Redis has few records among many other keys, a page takes
// several calls, each with its own deadline.
func (c *clientEdits) collect(ctx context.Context, query directory.ListQuery) (*directory.Listing, error) {
	all, most := &directory.Listing{Clients: []directory.Listed{}}, query.Most
	for {
		query.Most = most - len(all.Clients)
		page, err := c.page(ctx, query)
		if err != nil {
			return nil, err
		}
		if page.After != "" && page.After == query.After {
			return nil, fmt.Errorf("the page after %q ends at %[1]q as well, so the list cannot go on", page.After)
		}
		all.Clients, all.After = append(all.Clients, page.Clients...), page.After
		if query.After = page.After; page.After == "" || len(all.Clients) >= most {
			return all, nil
		}
	}
}

// clientEdits.page makes one call for a page.
func (c *clientEdits) page(ctx context.Context, query directory.ListQuery) (*directory.Listing, error) {
	values := url.Values{}
	for name, value := range map[string]string{"kind": query.Kind, "after": query.After} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if query.Blocked {
		values.Set("blocked", "true")
	}
	if c.control.given() {
		values.Set("limit", fmt.Sprint(query.Most))
		return c.control.list(ctx, values)
	}
	values.Set("n", fmt.Sprint(query.Most))
	return decodeReply[directory.Listing](c.admin.ask(ctx, http.MethodGet, "records", values))
}

// controlClient.list returns a page of the clients in the database of a control plane.
func (c *controlClient) list(ctx context.Context, query url.Values) (*directory.Listing, error) {
	var found struct {
		Clients []ledger.Client
		Next    string
	}
	if _, err := c.send(ctx, http.MethodGet, "/v1/clients?"+query.Encode(), nil, &found); err != nil {
		return nil, err
	}
	page := &directory.Listing{After: found.Next}
	for i := range found.Clients {
		page.Clients = append(page.Clients, directory.Listed{Client: found.Clients[i].Client, Record: found.Clients[i].Record})
	}
	return page, nil
}

// writeListing prints a page for people.
func writeListing(w io.Writer, all *directory.Listing, now time.Time) {
	if len(all.Clients) == 0 {
		fmt.Fprintln(w, "there is no such client")
	} else {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "CLIENT\tTIER\tTENANT\tLIMITS OF\tBLOCKED\tEXEMPT\tNOTE")
		for _, one := range all.Clients {
			r := one.Record
			if r == nil {
				fmt.Fprintf(table, "%s\t%s\n", quoteUnprintable(one.Client), quoteUnprintable(one.Problem))
				continue
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", quoteUnprintable(one.Client), quoteUnprintable(r.Tier), quoteUnprintable(r.Tenant),
				quoteUnprintable(strings.Join(slices.Sorted(maps.Keys(r.Limits)), ", ")), describeMark(r.Block, now), describeMark(r.Exempt, now), quoteUnprintable(r.Note))
		}
		_ = table.Flush()
	}
	if all.After != "" {
		fmt.Fprintf(w, "there are more: --after %q\n", all.After)
	}
}

// describeMark describes a block or an exemption as text: until when, and why.
func describeMark(m *directory.Mark, now time.Time) string {
	if m == nil {
		return "-"
	}
	text := "yes"
	if !m.Until.IsZero() {
		text = "until " + m.Until.UTC().Format(time.RFC3339)
		if !m.Until.After(now) {
			text += " (ended)"
		}
	}
	if m.Reason != "" {
		text += ": " + quoteUnprintable(m.Reason)
	}
	return text
}
