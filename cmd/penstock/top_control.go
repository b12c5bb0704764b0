// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/policyfile"
)

// violators is the part of the command top that asks a control plane.
type violators struct {
	control     controlClient
	since, rule string
}

func (v *violators) register(cmd *cobra.Command) {
	v.control.register(cmd.Flags())
	cmd.Flags().StringVar(&v.since, "since", "1d", "with --control: of how long, such as 2h or 30d; whole hours")
	cmd.Flags().StringVar(&v.rule, "rule", "", "with --control: only denials of this `RULE`")
}

// violators.check returns an error if the flags contradict each other.
func (v *violators) check(cmd *cobra.Command) error {
	if err := v.control.check(cmd.Flags()); err != nil {
		return err
	}
	for _, flag := range []string{"since", "rule"} {
		if !v.control.given() && cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s goes with --control: give that as well, or leave it out", flag)
		}
	}
	if v.control.given() && cmd.Flags().Changed("this-node") {
		return errors.New("--this-node has no effect with --control: ask the node itself with --admin or --bridge")
	}
	return nil
}

// violators.print prints the clients that were denied most.
func (v *violators) print(ctx context.Context, out io.Writer, n int, asJSON bool) error {
	span, err := policyfile.Span(v.since)
	if err != nil || span <= 0 {
		return fmt.Errorf("--since %q is no span: write 2h or 30d", v.since)
	}
	query := url.Values{"limit": {strconv.Itoa(n)}, "from": {time.Now().Add(-span).UTC().Format(time.RFC3339)}}
	if v.rule != "" {
		query.Set("rule", v.rule)
	}
	var answer json.RawMessage
	if _, err := v.control.send(ctx, http.MethodGet, "/v1/top?"+query.Encode(), nil, &answer); err != nil {
		return err
	}
	if asJSON {
		_, err = fmt.Fprintf(jsonWriter{out}, "%s\n", answer)
		return err
	}
	var top struct {
		From, To time.Time
		Clients  []reports.Violator
	}
	if err := json.Unmarshal(answer, &top); err != nil {
		return fmt.Errorf("reading who was denied most: %w", err)
	}
	if len(top.Clients) == 0 {
		_, err = fmt.Fprintf(out, "no client was denied since %s\n", top.From.Format(time.RFC3339))
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "DENIED\tCLIENT\tPOLICY\tMOSTLY BY RULE")
	for _, c := range top.Clients {
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\n", c.Denied, quoteUnprintable(c.Client), quoteUnprintable(c.Policy), quoteUnprintable(c.Rule))
	}
	return table.Flush()
}
