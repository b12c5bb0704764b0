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
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
)

// regionUnits holds what the Redis of a region knows of a client.
type regionUnits struct {
	Region string          `json:"region"`
	Report json.RawMessage `json:"report,omitempty"` // as the command "penstock client" prints it
	Error  string          `json:"error,omitempty"`

	err    error
	report usageReport
}

// showUnits reads the Redis of each region. It prints a client's record, and where the units of its
// counters are. If the Redis of a region does not answer, it prints what the other regions have,
// and returns an error.
func (c *clientEdits) showUnits(cmd *cobra.Command, client string, inRegions []string) error {
	if err := c.checkUnits(cmd.Flags(), client); err != nil {
		return err
	}
	named, err := parseRegions("in-region", inRegions)
	if err != nil {
		return err
	}
	asked := make([]*regionUnits, len(named))
	targets := make([]directTarget, len(named))
	for i, r := range named {
		asked[i], targets[i] = &regionUnits{Region: r.name}, c.admin.direct
		targets[i].redis.URL, targets[i].region = r.address, regionFlag(r.name)
	}
	var asking sync.WaitGroup
	for i, r := range asked {
		asking.Go(func() { r.ask(cmd.Context(), &targets[i], client) })
	}
	asking.Wait()
	errs := make([]error, 0, len(asked))
	failed := 0
	for _, r := range asked {
		if r.err != nil {
			failed++
		}
		if nobody := new(nobodyError); errors.As(r.err, &nobody) {
			return nobody
		}
		errs = append(errs, r.err)
	}
	if failed == len(asked) {
		return errors.Join(errs...)
	}
	if err := c.print(cmd.OutOrStdout(), asked, func(w io.Writer) { writeUnits(w, client, asked) }); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// checkUnits returns an error if flags are missing, or have no effect with --in-region.
func (c *clientEdits) checkUnits(flags *pflag.FlagSet, client string) error {
	for _, other := range []string{"admin", "bridge", "control", "redis", "redis-addrs", "redis-env", "region"} {
		if flags.Changed(other) {
			return fmt.Errorf("--in-region reads the Redis of each region, and --%s names another target: keep one", other)
		}
	}
	if c.admin.direct.policy == "" || c.admin.direct.policy == "-" {
		return errors.New("--in-region needs the policy, because Redis does not know which counters there are: add --policy-file FILE")
	}
	return directory.CheckUTF8("client", client)
}

// regionUnits.ask reads what the Redis of a region knows of a client.
func (r *regionUnits) ask(ctx context.Context, target *directTarget, client string) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	var err error
	if target.redis.URL, err = fillIn(target.redis.URL); err == nil {
		r.Report, err = target.ask(ctx, http.MethodGet, "client", url.Values{"client": {client}}, http.NoBody)
	}
	if err == nil {
		err = json.Unmarshal(r.Report, &r.report)
	}
	if err != nil {
		r.err = fmt.Errorf("region %s: %w", r.Region, err)
		r.Report, r.Error = nil, err.Error()
	}
}

// unitsOf identifies a counter that each region has: the nth counter of a rule.
type unitsOf struct {
	policy, rule, whose string
	nth                 int
}

// writeUnits prints the record, and a table of the counters in each region.
func writeUnits(w io.Writer, client string, asked []*regionUnits) {
	var record *directory.Record
	for _, r := range asked {
		if record == nil {
			record = r.report.Record
		}
	}
	writeRecord(w, client, record)
	var order []unitsOf
	counters := map[unitsOf]map[string]operator.Counter{}
	for _, r := range asked {
		seen := map[unitsOf]int{}
		for _, c := range mergeShards(r.report.Counters) {
			of := unitsOf{policy: c.Policy, rule: c.Rule, whose: c.Whose}
			seen[of]++
			if of.nth = seen[of]; counters[of] == nil {
				order, counters[of] = append(order, of), map[string]operator.Counter{}
			}
			counters[of][r.Region] = c
		}
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POLICY\tRULE\tREGION\tPART\tUSED\tREMAINING")
	for _, of := range order {
		var all []operator.Counter
		for _, r := range asked {
			if c, ok := counters[of][r.Region]; ok {
				all = append(all, c)
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\n", quoteUnprintable(c.Policy), quoteUnprintable(c.Rule), r.Region, quoteUnprintable(c.Limit),
					c.Used, c.Remaining)
			}
		}
		if len(all) > 1 {
			used, remaining := together(all)
			fmt.Fprintf(table, "%s\t%s\ttogether\t\t%d\t%d\n", quoteUnprintable(of.policy), quoteUnprintable(of.rule), used, remaining)
		}
	}
	_ = table.Flush() // the caller's writer reports errors later
}

// together returns the used and remaining units of a counter in all regions. With across: gossip,
// each region has the whole limit, and also counts the units of other regions that have been
// reported to it. So the numbers of the region that has counted most are the most accurate.
func together(all []operator.Counter) (used, remaining int64) {
	for i, c := range all {
		switch {
		case !c.Gossip:
			used, remaining = used+c.Used, remaining+c.Remaining
		case i == 0:
			used, remaining = c.Used, c.Remaining
		default:
			used, remaining = max(used, c.Used), min(remaining, c.Remaining)
		}
	}
	return used, remaining
}
