// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// changeTime bounds how long a change of the regions may take. An agent that does not receive the
// change in this time stops lending before the change takes effect: see package writeoff.
const changeTime = 20 * time.Second

const forgetHelp = `Write off a region that is lost, so that the others can use its part of each limit with across: lease.

Give the Redis of each remaining region with --region. One of them, the steward, lends the part to all. It does so in windows that
begin a minute later, or after --since, because what the lost region has admitted before is not known. For limits with across: share, the
part remains unused.

Nobody can know from here whether the region is down. If it still runs, it admits at most its own part in addition, and the parts that it
lends as a steward, until its agent hears from another one that it is written off. Then it denies requests under such limits until penstock
regions restore. Repeat the command with the Redis of the lost region, too, before its processes start again: then they know it at once.`

const restoreHelp = `Take a region back that was written off. Its steward stops lending its part, and the region uses it in windows that begin a
minute later. Until then it denies requests under limits with across: lease.

Give the Redis of the region and that of its steward with --region, and preferably all others.`

// regionsChange is a command that changes who uses the part of a region.
type regionsChange struct {
	redis   redisstore.Options
	regions []string // NAME=URL
	down    bool
	since   string
}

func newRegionsForget() *cobra.Command {
	f := new(regionsChange)
	cmd := &cobra.Command{Use: "forget REGION --it-is-down", Short: "Let the other regions use the part of a lost region", Long: forgetHelp,
		Args:    cobra.ExactArgs(1),
		Example: "  penstock regions forget eu --it-is-down --region us=redis://redis.us:6379 --region ap=redis://redis.ap:6379",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !f.down {
				return fmt.Errorf("penstock cannot know whether %s is down, and a region that still runs would admit its part in addition: end its "+
					"processes, and add --it-is-down", quoteUnprintable(args[0]))
			}
			return f.run(cmd, args[0], func(s *writeoff.State, reached []string, now counter.Micros) error {
				since, err := f.sinceWhen(now)
				if err != nil {
					return err
				}
				return s.Forget(args[0], reached, since)
			})
		}}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.down, "it-is-down", false, "none of the region's processes runs")
	cmd.Flags().StringVar(&f.since, "since", "", "the region has admitted nothing since this `TIME`, such as 2026-11-26T20:14:00Z (in a minute)")
	return cmd
}

func newRegionsRestore() *cobra.Command {
	f := new(regionsChange)
	cmd := &cobra.Command{Use: "restore REGION", Short: "Take back a region that was written off", Long: restoreHelp, Args: cobra.ExactArgs(1),
		Example: "  penstock regions restore eu --region eu=redis://redis.eu:6379 --region us=redis://redis.us:6379 --region ap=redis://redis.ap:6379",
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args[0], func(s *writeoff.State, reached []string, now counter.Micros) error {
				return s.Restore(args[0], reached, now+writeoff.Margin)
			})
		}}
	f.register(cmd)
	return cmd
}

func (f *regionsChange) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.regions, "region", nil, "a region and its Redis, as `NAME=redis://host:6379`; once for each region that is reached")
	flags := cmd.Flags()
	flags.StringVar(&f.redis.Username, "redis-username", "", "the user of each Redis, in place of the URL's")
	flags.StringVar(&f.redis.PasswordFile, "redis-password-file", "", "a `FILE` that holds the password")
	flags.StringVar(&f.redis.CAFile, "redis-ca", "", "a PEM `FILE` with the CAs of the certificates of each Redis")
	flags.StringVar(&f.redis.CertFile, "redis-cert", "", "a PEM `FILE` with a certificate to show to each Redis")
	flags.StringVar(&f.redis.KeyFile, "redis-key", "", "a PEM `FILE` with its key")
}

// sinceWhen returns the time since which the region has admitted nothing, as --since states. The
// default is the present time plus writeoff.Margin.
func (f *regionsChange) sinceWhen(now counter.Micros) (counter.Micros, error) {
	if f.since == "" {
		return now + writeoff.Margin, nil
	}
	at, err := time.Parse(time.RFC3339, f.since)
	if err != nil || at.UnixMicro() <= 0 {
		return 0, fmt.Errorf("--since %q is not a time such as 2026-11-26T20:14:00Z", f.since)
	}
	if since := counter.Micros(at.UnixMicro()); since <= now {
		return since, nil
	}
	return 0, fmt.Errorf("--since %s is in the future: leave it out if the region has stopped just now", f.since)
}

// reachedRegion is a region whose Redis is open.
type reachedRegion struct {
	name  string
	redis *redisstore.Store
	clock counter.Micros
	state writeoff.State
}

// regionsChange.run changes the state of the regions, and writes it to each region that is reached.
func (f *regionsChange) run(cmd *cobra.Command, name string, change func(s *writeoff.State, reached []string, now counter.Micros) error) error {
	if !policyfile.IsRegion(name) {
		return fmt.Errorf("%q is not the name of a region", name)
	}
	regions, err := f.open(slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
	defer func() {
		for _, r := range regions {
			_ = r.redis.Close()
		}
	}()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), changeTime)
	defer cancel()
	all, now, err := readRegions(ctx, regions)
	if err != nil {
		return err
	}
	before, reached := all.Entries[name], make([]string, 0, len(regions))
	for _, r := range regions {
		reached = append(reached, r.name)
	}
	if err := change(&all, reached, now); err != nil {
		return err
	}
	// The region that used the part stops first, and the region that is to use it begins last.
	last, first := cmp.Or(all.Entries[name].Steward, name), cmp.Or(before.Steward, name)
	slices.SortStableFunc(regions, func(a, b *reachedRegion) int { return order(a.name, first, last) - order(b.name, first, last) })
	out := cmd.OutOrStdout()
	for _, r := range regions {
		known := r.state.Entries[name] == all.Entries[name]
		if _, err := writeoff.Update(ctx, r.redis, r.clock+counter.Micros(changeTime.Microseconds()), func(s *writeoff.State) {
			if s.Merge(all.Entries); s.Here == "" {
				s.Here, s.Names = r.name, all.Names
			}
		}); err != nil {
			return fmt.Errorf("the Redis of %s: %w; repeat the command", r.name, err)
		}
		printChange(out, r.name, name, all.Entries[name], known)
	}
	if all.Entries[name].Forgotten() {
		fmt.Fprintf(out, "It is not known whether %s is down. If it still runs, it admits at most its own part in addition, until it hears of this.\n", name)
	}
	return nil
}

func order(name, first, last string) int {
	switch name {
	case first:
		return 0
	case last:
		return 2
	}
	return 1
}

func printChange(out io.Writer, at, name string, e writeoff.Entry, known bool) {
	verb, since := "now knows", time.UnixMicro(int64(e.Since)).UTC().Format(time.RFC3339)
	if known {
		verb = "knew already"
	}
	switch {
	case e.Generation == 0:
		fmt.Fprintf(out, "%s: %s is not written off\n", at, name)
	case e.Forgotten():
		fmt.Fprintf(out, "%s %s: %s is written off, %s lends its part of limits in windows that begin at %s or later\n", at, verb, name, e.Steward, since)
	default:
		fmt.Fprintf(out, "%s %s: %s uses its part of limits in windows that begin at %s or later\n", at, verb, name, since)
	}
}

// regionsChange.open opens the Redis of each region that the flags name.
func (f *regionsChange) open(logger *slog.Logger) (regions []*reachedRegion, err error) {
	if len(f.regions) == 0 {
		return nil, errors.New("--region is missing; write --region NAME=redis://host:6379 for each region that is reached")
	}
	named, err := parseRegions("region", f.regions)
	if err != nil {
		return nil, err
	}
	for _, r := range named {
		store, err := openRegionAt(f.redis, r.address, logger)
		if err != nil {
			return regions, fmt.Errorf("--region %s: %w", r.name, err)
		}
		regions = append(regions, &reachedRegion{name: r.name, redis: store})
	}
	return regions, nil
}

// readRegions returns what all regions know together, and the latest of their clocks.
func readRegions(ctx context.Context, regions []*reachedRegion) (all writeoff.State, now counter.Micros, err error) {
	for _, r := range regions {
		at, err := clockOf(ctx, r.redis)
		if err != nil {
			return all, 0, fmt.Errorf("the Redis of %s: %w", r.name, err)
		}
		r.clock, now = at, max(now, at)
		value, err := writeoff.Read(ctx, r.redis)
		if err == nil {
			r.state, err = writeoff.Parse(value)
		}
		switch {
		case errors.Is(err, writeoff.ErrDamaged):
			return all, 0, fmt.Errorf("the Redis of %s: %w; delete the key %s, and the region's agent writes it anew", r.name, err, writeoff.Key)
		case err != nil:
			return all, 0, fmt.Errorf("the Redis of %s: %w", r.name, err)
		case r.state.Here != "" && r.state.Here != r.name:
			return all, 0, fmt.Errorf("--region %s names the Redis of region %s", r.name, r.state.Here)
		}
		all.Merge(r.state.Entries)
		for _, name := range r.state.Names {
			if !slices.Contains(all.Names, name) {
				all.Names = append(all.Names, name)
			}
		}
	}
	if len(all.Names) == 0 {
		return all, 0, errors.New("no agent has written the names of the policy's regions to any of them: start penstock region of this release first")
	}
	return all, now, nil
}

// clockOf returns the clock of a Redis.
func clockOf(ctx context.Context, r *redisstore.Store) (counter.Micros, error) {
	reply, err := r.DoFor(ctx, writeoff.Key, "TIME")
	if err != nil {
		return 0, err
	}
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return 0, fmt.Errorf("TIME answered %v", reply)
	}
	seconds, err := strconv.ParseInt(fmt.Sprint(parts[0]), 10, 64)
	return counter.Micros(seconds+1) * counter.Second, err
}
