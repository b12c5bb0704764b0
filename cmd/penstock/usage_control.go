// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/reports"
)

// billing is the part of the command usage that asks a control plane.
type billing struct {
	control               controlClient
	month, format, region string
	by                    string
}

// billingFlags are the flags that apply only with a control plane. countedFlags are the flags that
// apply only without a control plane.
var (
	billingFlags = []string{"month", "format", "by"}
	countedFlags = []string{"json", "user", "tier", "tenant", "host"}
)

func (b *billing) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	b.control.register(flags)
	flags.StringVar(&b.month, "month", "", "with --control: a `MONTH` of UTC, as 2026-11; the present one if it is left out")
	flags.StringVar(&b.by, "by", "", "with --control: region, for a row for each region; usage of nodes without a region is left out")
	flags.StringVar(&b.format, "format", "table", "with --control: table, csv or ndjson")
}

// billing.check returns an error if the flags contradict each other.
func (b *billing) check(cmd *cobra.Command, args []string) error {
	if err := b.control.check(cmd.Flags()); err != nil {
		return err
	}
	if b.by != "" && b.by != "region" {
		return fmt.Errorf("--by %q is unknown: write region, or leave it out", b.by)
	}
	if b.control.given() {
		for _, flag := range countedFlags {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s has no effect with --control: a client is its argument, and --format ndjson is for programs", flag)
			}
		}
		var err error
		b.region, err = cmd.Flags().GetString("region")
		return err
	}
	for _, flag := range billingFlags {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s goes with --control: give that as well, or leave it out", flag)
		}
	}
	if len(args) == 0 {
		return errors.New("whose usage? write penstock usage KIND:ID, or --control URL for that of all clients in a month")
	}
	return nil
}

// billing.print prints the usage of a month, page by page. The parameter query has the client, the
// policy and the rule.
func (b *billing) print(ctx context.Context, out io.Writer, query url.Values) error {
	w, err := newUsageWriter(b.format, b.by != "" || b.region != "", out)
	if err != nil {
		return err
	}
	query.Set("limit", strconv.Itoa(reports.RowsMax))
	for name, value := range map[string]string{"month": b.month, "region": b.region, "by": b.by} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for {
		var page struct {
			Month string
			Usage []reports.Usage
			Next  string
		}
		if _, err := b.control.send(ctx, http.MethodGet, "/v1/usage?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		for i := range page.Usage {
			if err := w.write(page.Month, &page.Usage[i]); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return w.end()
		}
		query.Set("after", page.Next)
		// so that the month stays the same if it ends between two pages
		query.Set("month", page.Month)
	}
}

// usageWriter writes rows of usage in one output format.
type usageWriter struct {
	write func(month string, u *reports.Usage) error
	end   func() error
}

var usageColumns = []string{"month", "client", "policy", "rule", "tier", "admitted", "denied", "units"}

// usageFields returns the values of one row of usage, by column. The region is the last one, if
// rows have regions.
func usageFields(month string, u *reports.Usage, regions bool) []string {
	n := func(i int64) string { return strconv.FormatInt(i, 10) }
	fields := []string{month, u.Client, u.Policy, u.Rule, u.Tier, n(u.Admitted), n(u.Denied), n(u.Units)}
	if regions {
		fields = append(fields, u.Region)
	}
	return fields
}

// newUsageWriter returns a writer of rows. The parameter regions is true if rows have a region.
func newUsageWriter(format string, regions bool, out io.Writer) (*usageWriter, error) {
	switch format {
	case "table":
		table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		head := "CLIENT\tPOLICY\tRULE\tTIER\tADMITTED\tDENIED\tUNITS"
		if regions {
			head += "\tREGION"
		}
		fmt.Fprintln(table, head)
		return &usageWriter{end: table.Flush, write: func(month string, u *reports.Usage) error {
			fields := usageFields(month, u, regions)[1:]
			for i := range fields {
				fields[i] = quoteUnprintable(fields[i])
			}
			_, err := fmt.Fprintln(table, strings.Join(fields, "\t"))
			return err
		}}, nil
	case "csv":
		w := csv.NewWriter(out)
		w.UseCRLF = true // RFC 4180
		columns := slices.Clone(usageColumns)
		if regions {
			columns = append(columns, "region")
		}
		if err := w.Write(columns); err != nil {
			return nil, err
		}
		return &usageWriter{end: func() error { w.Flush(); return w.Error() },
			write: func(month string, u *reports.Usage) error {
				return w.Write(escapeFormulas(usageFields(month, u, regions)))
			}}, nil
	case "ndjson":
		e := json.NewEncoder(jsonWriter{out})
		return &usageWriter{end: func() error { return nil }, write: func(month string, u *reports.Usage) error {
			return e.Encode(struct {
				Month string `json:"month"`
				*reports.Usage
			}{month, u})
		}}, nil
	}
	return nil, fmt.Errorf("there is no --format %q: write table, csv or ndjson", format)
}

// escapeFormulas puts an apostrophe before a field that a spreadsheet would take for a formula.
func escapeFormulas(fields []string) []string {
	for i, field := range fields {
		if field != "" {
			switch field[0] {
			case '=', '+', '-', '@', '\t', '\r':
				fields[i] = "'" + field
			}
		}
	}
	return fields
}
