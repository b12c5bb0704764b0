// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/policyfile"
)

// sums are the flags of the command "penstock control metrics".
type sums struct {
	controlCommand
	by, granularity, since, rule string
	region                       string
	asJSON                       bool
}

// newControlMetrics returns the command that prints sums over time.
func newControlMetrics() *cobra.Command {
	s := new(sums)
	cmd := s.command("metrics", "Print decisions and their latency by path pattern, or the most active clients of each minute", noArgs,
		func(cmd *cobra.Command, _ []string) error { return s.print(cmd.Context(), cmd.OutOrStdout()) })
	cmd.Example = "  penstock control metrics --since 2h\n  penstock control metrics --by client --since 10m"
	flags := cmd.Flags()
	flags.StringVar(&s.by, "by", "endpoint", "endpoint or client")
	flags.StringVar(&s.granularity, "granularity", "hour", "by endpoint: minute, hour or day")
	flags.StringVar(&s.since, "since", "1d", "of how long, such as 2h or 30d")
	flags.StringVar(&s.rule, "rule", "", "by endpoint: only this `RULE`")
	flags.StringVar(&s.region, "region", "", "by endpoint: only nodes of the region of this `NAME`")
	flags.BoolVar(&s.asJSON, "json", false, "print one JSON object for each row")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		switch {
		case s.by != "endpoint" && s.by != "client":
			return fmt.Errorf("--by %q is unknown: write endpoint or client", s.by)
		case s.by == "client" && (flags.Changed("granularity") || flags.Changed("rule") || flags.Changed("region")):
			return fmt.Errorf("--granularity, --rule and --region go with --by endpoint: clients are listed by minute, under all rules")
		}
		return nil
	}
	return cmd
}

// sums.print prints all pages.
func (s *sums) print(ctx context.Context, out io.Writer) error {
	span, err := policyfile.Span(s.since)
	if err != nil || span <= 0 {
		return fmt.Errorf("--since %q is no span: write 2h or 30d", s.since)
	}
	query := url.Values{"limit": {fmt.Sprint(reports.RowsMax)}, "from": {time.Now().Add(-span).UTC().Format(time.RFC3339)}}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	path, list, row := "/v1/metrics/clients?", "clients", activeRow
	if s.by == "endpoint" {
		path, list, row = "/v1/metrics/endpoints?", "endpoints", endpointRow
		query.Set("granularity", s.granularity)
		if s.rule != "" {
			query.Set("rule", s.rule)
		}
		if s.region != "" {
			query.Set("region", s.region)
		}
		if !s.asJSON {
			fmt.Fprintln(table, "TIME\tPOLICY\tRULE\tENDPOINT\tREGION\tADMITTED\tDENIED\tP50\tP95\tP99")
		}
	} else if !s.asJSON {
		fmt.Fprintln(table, "TIME\tCLIENT\tPOLICY\tRULE\tADMITTED\tDENIED\tUNITS")
	}
	for {
		var page map[string]json.RawMessage
		if _, err := s.send(ctx, http.MethodGet, path+query.Encode(), nil, &page); err != nil {
			return err
		}
		var rows []json.RawMessage
		if err := json.Unmarshal(page[list], &rows); err != nil {
			return fmt.Errorf("reading the %s: %w", list, err)
		}
		for _, text := range rows {
			if s.asJSON {
				fmt.Fprintf(out, "%s\n", text)
			} else if err := row(table, text); err != nil {
				return err
			}
		}
		var next string
		if page["next"] == nil || json.Unmarshal(page["next"], &next) != nil || next == "" {
			return table.Flush()
		}
		query.Set("after", next)
	}
}

func endpointRow(w io.Writer, text []byte) error {
	var e reports.Endpoint
	if err := json.Unmarshal(text, &e); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\n", e.At.Format(time.RFC3339), quoteUnprintable(e.Policy), quoteUnprintable(e.Rule),
		quoteUnprintable(e.Endpoint), quoteUnprintable(e.Region), e.Admitted, e.Denied, micros(e.P50), micros(e.P95), micros(e.P99))
	return err
}

// micros returns a number of microseconds as text for people.
func micros(n float64) string {
	return (time.Duration(n+0.5) * time.Microsecond).String()
}

func activeRow(w io.Writer, text []byte) error {
	var a reports.Active
	if err := json.Unmarshal(text, &a); err != nil {
		return err
	}
	client := quoteUnprintable(a.Client)
	if a.Client == "" {
		client = "(all others)"
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\n", a.At.Format(time.RFC3339), client, quoteUnprintable(a.Policy), quoteUnprintable(a.Rule),
		a.Admitted, a.Denied, a.Units)
	return err
}
