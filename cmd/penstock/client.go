// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
)

// clientEdits are the commands that change a client's record, such as "penstock client block".
type clientEdits struct {
	admin   *admin
	control controlClient
	asJSON  bool
}

// addClientEdits adds the commands that read and change the directory to the command "client".
func addClientEdits(parent *cobra.Command, a *admin) {
	c := &clientEdits{admin: a}
	parent.AddCommand(c.show(), c.list(), c.history(), c.export(), c.importRecords(),
		c.edit(directory.ActionSetTier, "set-tier CLIENT TIER", "Set a client's tier", 1, false),
		c.edit(directory.ActionUnsetTier, "unset-tier CLIENT", "Remove a client's tier and tenant", 0, false),
		c.edit(directory.ActionSetTenant, "set-tenant CLIENT TENANT", "Set a client's tenant", 1, false),
		c.edit(directory.ActionSetLimits, "set-limit CLIENT RULE LIMIT...", `Set a client's own limits for a rule, or for "*"`, -1, true),
		c.edit(directory.ActionUnsetLimits, "unset-limit CLIENT [RULE]", "Remove a client's own limits", -1, false),
		c.edit(directory.ActionGrant, "grant CLIENT RULE UNITS", "Grant a client units once, in the present window of a limit", 2, false),
		c.edit(directory.ActionUngrant, "ungrant CLIENT [RULE]", "Remove a client's grants", -1, false),
		c.edit(directory.ActionBlock, "block CLIENT", "Deny every request of a client with 403", 0, true),
		c.edit(directory.ActionUnblock, "unblock CLIENT", "End the block of a client", 0, false),
		c.edit(directory.ActionExempt, "exempt CLIENT", "Admit every request of a client without counting it", 0, true),
		c.edit(directory.ActionUnexempt, "unexempt CLIENT", "End the exemption of a client", 0, false),
		c.edit(directory.ActionNote, "note CLIENT TEXT", "Set the note on a client's record", 1, false),
		c.edit(directory.ActionForget, "forget CLIENT", "Remove a client's record", 0, false))
	for _, cmd := range parent.Commands() {
		flags := cmd.Flags()
		a.register(flags)
		c.control.register(flags)
		cmd.PreRunE = func(*cobra.Command, []string) error { return c.control.check(flags) }
		flags.BoolVar(&c.asJSON, "json", false, "print JSON")
	}
}

// clientEdits.edit returns the command of an action. The parameter arguments is the number of
// arguments after the client; -1 stands for any number. If the parameter ends is true, the change
// may have an end.
func (c *clientEdits) edit(action directory.Action, use, short string, arguments int, ends bool) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.MinimumNArgs(1)}
	if arguments >= 0 {
		cmd.Args = cobra.ExactArgs(1 + arguments)
	}
	edit := directory.Edit{Action: action}
	var until, span string
	flags := cmd.Flags()
	flags.StringVar(&edit.Reason, "reason", "", "why, for the history; required")
	flags.StringVar(&edit.Actor, "actor", currentUser(), "who makes the change, for the history")
	if action == directory.ActionGrant {
		flags.StringVar(&edit.Window, "window", "", "the window of the limit, such as 1h or month; by default the longest fixed or calendar window")
	}
	if ends {
		flags.StringVar(&until, "until", "", "the end: a date (2026-12-31, in UTC) or an instant (2026-12-31T12:00:00Z); none by default")
		flags.StringVar(&span, "for", "", "the end as a span from now, such as 1h or 7d")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if edit.Until, err = parseEnd(until, span, time.Now()); err != nil {
			return err
		}
		edit.Client = args[0]
		if err := fill(&edit, args[1:]); err != nil {
			return err
		}
		change, err := c.apply(cmd.Context(), edit)
		if err != nil {
			return err
		}
		return c.print(cmd.OutOrStdout(), change, func(w io.Writer) {
			writeRecord(w, change.Client, change.After)
			if change.Keys > 0 {
				fmt.Fprintf(w, "%d API keys of the client were removed\n", change.Keys)
			}
		})
	}
	return cmd
}

// fill sets the fields of an edit from the arguments that follow the client.
func fill(edit *directory.Edit, args []string) error {
	switch edit.Action {
	case directory.ActionSetTier:
		edit.Tier = args[0]
	case directory.ActionSetTenant:
		edit.Tenant = args[0]
	case directory.ActionNote:
		edit.Note = args[0]
	case directory.ActionSetLimits, directory.ActionUnsetLimits:
		if len(args) > 0 {
			edit.Rule, edit.Limits = args[0], args[1:]
		}
	case directory.ActionUngrant:
		if edit.Rule = strings.Join(args, " "); len(args) > 1 {
			return fmt.Errorf("ungrant takes one rule, and %q are several; leave the rule out for all", args)
		}
	case directory.ActionGrant:
		units, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil || units < 1 {
			return fmt.Errorf("%q is no number of units to grant: write a whole number, such as 500", args[1])
		}
		edit.Rule, edit.Units = args[0], units
	}
	return nil
}

// clientEdits.apply makes an edit, through the control plane if one is named.
func (c *clientEdits) apply(ctx context.Context, edit directory.Edit) (*directory.Change, error) {
	if c.control.given() {
		return c.control.apply(ctx, edit)
	}
	if err := directory.CheckUTF8("client", edit.Client); err != nil {
		return nil, err
	}
	return decodeReply[directory.Change](c.admin.post(ctx, "edit", edit))
}

// lookUp returns a client's record and its latest changes.
func (c *clientEdits) lookUp(ctx context.Context, client string, n int) (*operator.ClientEntry, error) {
	if c.control.given() {
		return c.control.lookUp(ctx, client, n)
	}
	query := url.Values{"client": {client}}
	if n > 0 {
		query.Set("n", fmt.Sprint(n))
	}
	return decodeReply[operator.ClientEntry](c.admin.ask(ctx, http.MethodGet, "record", query))
}

// clientEdits.show returns the command that prints a client's record.
func (c *clientEdits) show() *cobra.Command {
	var inRegions []string
	cmd := &cobra.Command{Use: "show CLIENT", Short: "Print a client's record in the directory", Args: cobra.ExactArgs(1),
		Long: "Print a client's record in the directory. With --in-region for each region, also print where the units of its counters are.",
		Example: "  penstock client show user:u_42\n" +
			"  penstock client show user:u_42 --policy-file policy.yaml --in-region us=redis://redis.us:6379 --in-region eu=redis://redis.eu:6379",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(inRegions) > 0 {
				return c.showUnits(cmd, args[0], inRegions)
			}
			entry, err := c.lookUp(cmd.Context(), args[0], 0)
			if err != nil {
				return err
			}
			if entry.Record == nil {
				return &nobodyError{fmt.Sprintf("there is no record of %s: its credential and the policy say all there is", entry.Client)}
			}
			return c.print(cmd.OutOrStdout(), entry, func(w io.Writer) {
				writeRecord(w, entry.Client, entry.Record)
				for _, note := range entry.Notes {
					fmt.Fprintf(w, "note: %s\n", quoteUnprintable(note))
				}
			})
		}}
	cmd.Flags().StringArrayVar(&inRegions, "in-region", nil, "a region and its Redis, as `NAME=redis://host:6379`; once for each region")
	return cmd
}

// clientEdits.history returns the command that prints the latest changes.
func (c *clientEdits) history() *cobra.Command {
	cmd := &cobra.Command{Use: "history [CLIENT]", Short: "Print the latest changes of a client's record, or of all", Args: cobra.MaximumNArgs(1)}
	n := cmd.Flags().IntP("number", "n", 20, "how many changes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		entry, err := c.lookUp(cmd.Context(), strings.Join(args, ""), *n)
		if err != nil {
			return err
		}
		return c.print(cmd.OutOrStdout(), entry, func(w io.Writer) {
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "TIME\tCLIENT\tACTOR\tCHANGE\tREASON")
			for _, e := range entry.History {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.At.Format(time.RFC3339), quoteUnprintable(e.Name), quoteUnprintable(e.Actor), quoteUnprintable(string(e.Action)),
					quoteUnprintable(e.Reason))
			}
			_ = table.Flush()
		})
	}
	return cmd
}

// clientEdits.print prints a value as JSON if --json is set. Otherwise it calls people, which
// prints the value as text that people can read.
func (c *clientEdits) print(w io.Writer, value any, people func(io.Writer)) error {
	if !c.asJSON {
		people(w)
		return nil
	}
	return printJSON(w, value)
}

// writeRecord prints a record for people.
func writeRecord(w io.Writer, client string, r *directory.Record) {
	if r == nil {
		fmt.Fprintf(w, "%s has no record\n", quoteUnprintable(client))
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string, until time.Time, reason string) {
		if !until.IsZero() {
			value += " until " + until.UTC().Format(time.RFC3339)
			if !until.After(time.Now()) {
				value += " (ended)"
			}
		}
		if reason != "" {
			value += ": " + reason
		}
		fmt.Fprintf(table, "%s\t%s\n", quoteUnprintable(name), quoteUnprintable(value))
	}
	line("client", client, time.Time{}, "")
	for _, field := range [][2]string{{"tier", r.Tier}, {"tenant", r.Tenant}, {"note", r.Note}} {
		if field[1] != "" {
			line(field[0], field[1], time.Time{}, "")
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(r.Limits)) {
		own := r.Limits[rule]
		line("limits of "+rule, strings.Join(own.Limits, ", "), own.Until, own.Reason)
	}
	for i := range r.Grants {
		g := &r.Grants[i]
		value := fmt.Sprintf("%d units once, in the %s window of %s", g.Units, cmp.Or(g.Window, "longest"), g.At.UTC().Format(time.RFC3339))
		if g.Ended(time.Now()) {
			value += " (ended)"
		}
		line("granted for "+g.Rule, value, time.Time{}, g.Reason)
	}
	if r.Block != nil {
		line("blocked", "yes", r.Block.Until, r.Block.Reason)
	}
	if r.Exempt != nil {
		line("exempt", "yes", r.Exempt.Until, r.Exempt.Reason)
	}
	_ = table.Flush()
}
