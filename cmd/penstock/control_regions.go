// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/internal/control"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// regionRedisMax bounds the regions of a control plane.
const regionRedisMax = 64

// openRegions opens the Redis of each region that the flags name, or the only Redis.
func (f *controlFlags) openRegions(logger *slog.Logger) (regions []control.Region, err error) {
	defer func() {
		if err != nil {
			closeRegions(regions)
		}
	}()
	if len(f.regions) == 0 {
		store, err := openRedis(f.redis, "no Redis is named, and the proxies read their records from there", logger)
		if err != nil {
			return nil, err
		}
		return append(regions, control.Region{Redis: store}), nil
	}
	if namesServer(&f.redis) {
		return nil, errors.New("--region names the Redis of a region, and --redis or --redis-addrs names one for all: keep one")
	}
	if len(f.regions) > regionRedisMax {
		return nil, fmt.Errorf("--region is given %d times, and a control plane has at most %d regions", len(f.regions), regionRedisMax)
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
		regions = append(regions, control.Region{Name: r.name, Redis: store})
	}
	return regions, nil
}

// namedRegion is a region with the address of its Redis, as flags name it.
type namedRegion struct{ name, address string }

// parseRegions reads the values of a flag that names regions.
func parseRegions(flag string, values []string) (regions []namedRegion, err error) {
	for _, text := range values {
		name, address, ok := strings.Cut(text, "=")
		switch {
		case !ok || !policyfile.IsRegion(name) || address == "":
			return nil, fmt.Errorf("--%s %q is not NAME=redis://host:6379 with the name of a region, which has a-z, 0-9 and -", flag, hideAddress(text))
		case slices.ContainsFunc(regions, func(r namedRegion) bool { return r.name == name }):
			return nil, fmt.Errorf("--%s %s is given twice: keep one, with the Redis of its proxies", flag, name)
		}
		regions = append(regions, namedRegion{name, address})
	}
	return regions, nil
}

// hideAddress returns the beginning of a text NAME=ADDRESS, or of an address without a name. The
// result ends where a password could begin.
func hideAddress(text string) string {
	if end := strings.IndexAny(text, "=:/@?"); end >= 0 {
		return text[:end]
	}
	return text
}

// openRegionAt opens the Redis at an address. Users, passwords and certificates of the flags apply
// to all regions.
func openRegionAt(o redisstore.Options, address string, logger *slog.Logger) (store *redisstore.Store, err error) {
	if o.URL, err = fillIn(address); err != nil {
		return nil, err
	}
	if _, err := redisVariables(&o, os.Getenv); err != nil { // for passwords
		return nil, err
	}
	o.Timeout, o.Logger = redisstore.TimeoutMax, logger
	return redisstore.New(o)
}

func closeRegions(regions []control.Region) {
	for _, region := range regions {
		_ = region.Redis.Close()
	}
}

// printRegions prints what each region has.
func (c *controlClient) printRegions(ctx context.Context, out io.Writer) error {
	var answer struct{ Regions []ledger.Region }
	if _, err := c.send(ctx, http.MethodGet, "/v1/regions", nil, &answer); err != nil {
		return err
	}
	return printControlStatus(out, answer.Regions)
}

func printControlStatus(out io.Writer, regions []ledger.Region) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "REGION\tCHANGES\tPOLICIES\tSTATE")
	for i := range regions {
		r := &regions[i]
		name := r.Region
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(table, "%s\t%d of %d\t%d of %d\t%s\n", quoteUnprintable(name), r.Change, r.Change+r.Behind, r.Policies, r.Policies+int64(len(r.Missing)),
			quoteUnprintable(regionState(r)))
	}
	return table.Flush()
}

// regionState describes what a region lacks.
func regionState(r *ledger.Region) string {
	since := r.Since.Format(time.RFC3339)
	switch {
	case !r.Published:
		return "no process publishes to it; it keeps what it has"
	case r.Trouble != "":
		return "interrupted since " + since + "; it keeps what it has: " + r.Trouble
	case !r.Complete:
		return "the first records are being written"
	case r.Behind > 0:
		return "changes are being written"
	case len(r.Missing) > 0:
		return "lacks the publication of " + strings.Join(r.Missing, ", ")
	}
	return "current"
}
