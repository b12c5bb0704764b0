// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
)

// usageReport is the part of a client's report that the command usage prints.
type usageReport struct {
	Client      string
	Profiles    []operator.Profile
	Counters    []operator.Counter
	Penalties   []operator.Penalty
	Denials     []denialReport
	Record      *directory.Record
	RecordError string `json:"record_error"`
}

// denialReport is the part of an event of a denial that the command usage prints.
type denialReport struct {
	Time                         time.Time
	Rule, Decision, Method, Path string
	Count                        int
}

// usageCommand returns the command that prints a client's counters. The command usage sends the
// same request as the command client.
func (a *admin) usageCommand() *cobra.Command {
	var which counterFlags
	var bill billing
	cmd := &cobra.Command{Use: "usage CLIENT", Short: "Print what a client has used of its limits, without spending anything",
		Long: "Print what a client has used of each of its limits, how much is left, and when the limit is whole again. Units that a\n" +
			"process has leased count as used. A counter that is marked as shared has the units of other clients, too. The last denials\n" +
			"and the client's record are below, as \"penstock client --client\" prints them. The exit status is 3 if\n" +
			"no policy can have the client.\n\n" +
			"With --control, print what clients used in a month, for billing: of one, or of all if CLIENT is left out.\n" +
			"--by region prints a row for each region of the nodes, and --region NAME those of one.",
		Args: cobra.MaximumNArgs(1), Example: "  penstock usage user:u_42\n  penstock usage --control https://control:7070 --month 2026-11 --format csv"}
	which.register(cmd.Flags())
	bill.register(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON, for programs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := bill.check(cmd, args); err != nil {
			return err
		}
		which.of.words.Client = strings.Join(args, "")
		if bill.control.given() {
			return bill.print(cmd.Context(), cmd.OutOrStdout(), which.query())
		}
		return a.showReport(cmd, http.MethodGet, "client", &which, *asJSON, (*usageReport).print)
	}
	return cmd
}

// usageReport.print prints the counters as a table. Below, it prints a line for each penalty in
// force, the properties of the client and their origin, its last denials, and its record.
func (r *usageReport) print(out io.Writer, now time.Time) error {
	if len(r.Counters) == 0 {
		fmt.Fprintf(out, "no limit counts %s\n", quoteUnprintable(r.Client))
	} else if err := r.printCounters(out, now); err != nil {
		return err
	}
	for _, p := range r.Penalties {
		if p.InForce {
			fmt.Fprintf(out, "policy %s: a penalty denies every request for %s more, after %d violations\n", quoteUnprintable(p.Policy),
				wait(p.WaitMs), p.Violations)
		}
	}
	r.printOrigin(out)
	return nil
}

// printCounters prints the counters as a table.
func (r *usageReport) printCounters(out io.Writer, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POLICY\tRULE\tLIMIT\tWHOSE\tUSED\tREMAINING\tRESETS")
	for _, c := range mergeShards(r.Counters) {
		rule := quoteUnprintable(c.Rule)
		if c.Shared {
			rule += " (shared)"
		}
		limit := quoteUnprintable(c.Limit)
		if c.Granted > 0 {
			limit += fmt.Sprintf(" + %d granted", c.Granted)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", quoteUnprintable(c.Policy), rule, limit, quoteUnprintable(c.Whose), c.Used, c.Remaining,
			resets(&c, now))
	}
	return table.Flush()
}

// printReset prints the counters that were reset, as they are now.
func (r *usageReport) printReset(out io.Writer, now time.Time) error {
	if len(r.Counters) == 0 {
		_, err := fmt.Fprintf(out, "no limit counts %s alone, so nothing was reset\n", quoteUnprintable(r.Client))
		return err
	}
	fmt.Fprintf(out, "%s has these limits in full again:\n", quoteUnprintable(r.Client))
	return r.printCounters(out, now)
}

// printLift prints the policies whose penalties were lifted.
func (r *usageReport) printLift(out io.Writer, _ time.Time) error {
	for _, p := range r.Penalties {
		fmt.Fprintf(out, "policy %s: no penalty is in force for %s, and its violations are forgotten\n", quoteUnprintable(p.Policy), quoteUnprintable(r.Client))
	}
	if len(r.Penalties) == 0 {
		fmt.Fprintf(out, "no policy has penalties for %s\n", quoteUnprintable(r.Client))
	}
	return nil
}

// printOrigin prints what is known of the client besides its counters.
func (r *usageReport) printOrigin(out io.Writer) {
	for i := range r.Profiles {
		f := &r.Profiles[i]
		var known []string
		for _, field := range [][2]string{{"user", f.User}, {"tier", f.Tier}, {"tenant", f.Tenant}, {"state", f.State}, {"from", f.From}} {
			if field[1] != "" {
				known = append(known, field[0]+" "+quoteUnprintable(field[1]))
			}
		}
		if len(known) > 0 {
			fmt.Fprintf(out, "policy %s: %s\n", quoteUnprintable(f.Policy), strings.Join(known, ", "))
		}
	}
	for _, d := range r.Denials {
		often := ""
		if d.Count > 1 {
			often = fmt.Sprintf(", %d times", d.Count)
		}
		fmt.Fprintf(out, "%s at %s: rule %s, %s %s%s\n", quoteUnprintable(d.Decision), d.Time.UTC().Format(time.RFC3339), quoteUnprintable(d.Rule),
			quoteUnprintable(d.Method), quoteUnprintable(d.Path), often)
	}
	switch {
	case r.RecordError != "":
		fmt.Fprintf(out, "record: %s\n", quoteUnprintable(r.RecordError))
	case r.Record != nil:
		fmt.Fprintln(out)
		writeRecord(out, r.Client, r.Record)
	}
}

// resets returns a text that says when the whole limit is available again. If no unit is admitted
// now, the text also says when the next one is.
func resets(c *operator.Counter, now time.Time) string {
	if c.Used == 0 {
		return "-"
	}
	text := fmt.Sprintf("%s (in %s", now.Add(time.Duration(c.ResetMs)*time.Millisecond).UTC().Format(time.RFC3339), wait(c.ResetMs))
	if c.WaitMs > 0 && c.WaitMs != c.ResetMs {
		text += ", the next unit in " + wait(c.WaitMs)
	}
	return text + ")"
}

// wait formats a span for people. It rounds up, so that the displayed span is never too short.
func wait(ms int64) string {
	span := time.Duration(ms) * time.Millisecond
	unit := time.Millisecond
	if span > 10*time.Second {
		unit = time.Second
	}
	return (span + unit - 1).Truncate(unit).String()
}

// mergeShards returns the counters, with the shards of each limit combined into one.
func mergeShards(counters []operator.Counter) (all []operator.Counter) {
	for _, c := range counters {
		if c.ShardOf == "" {
			all = append(all, c)
			continue
		}
		c.Limit, c.ShardOf = c.ShardOf, ""
		if i := indexOfLimit(all, &c); i >= 0 {
			all[i].Used, all[i].Remaining = all[i].Used+c.Used, all[i].Remaining+c.Remaining
			all[i].ResetMs, all[i].WaitMs = max(all[i].ResetMs, c.ResetMs), min(all[i].WaitMs, c.WaitMs)
		} else {
			all = append(all, c)
		}
	}
	return all
}

// indexOfLimit returns the index of the counter of the same limit, or -1.
func indexOfLimit(all []operator.Counter, c *operator.Counter) int {
	for i := range all {
		if all[i].Policy == c.Policy && all[i].Rule == c.Rule && all[i].Limit == c.Limit && all[i].Whose == c.Whose {
			return i
		}
	}
	return -1
}
