// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/control/localpg"
)

// controlNodes is the number of Caddys that follow the control plane. A change must be in force in
// all of them.
const controlNodes = 20

// controlSizes has the sizes of the measurements of the control plane.
type controlSizes struct {
	writes    int           // changes of customers, one after the other
	revisions int           // published policies, one after the other
	cuts      int           // rounds of changes without Pub/Sub
	customers int           // with a record
	firsts    int           // customers that send a node their first request
	before    time.Duration // how long checks are sent before Redis is emptied
	ingest    time.Duration // how long batches are sent
	pairs     int           // pairs of a run with events and a run without
	run       time.Duration // the length of each run
	events    int           // rows of events that are queried
	queries   int           // of each kind of query
	archived  int           // rows in the month that is archived
	rules     int           // rules of the revision that is imported
}

// sizesOf returns the sizes that the options name.
func sizesOf(o options) controlSizes {
	s := controlSizes{writes: 300, revisions: 40, cuts: 2, customers: 1_000_000, firsts: 5_000, before: 5 * time.Second, ingest: 30 * time.Second,
		pairs: 10, run: 2 * time.Second, events: 5_000_000, queries: 300, archived: 2_000_000, rules: 10_000}
	if o.quick {
		s = controlSizes{writes: 30, revisions: 5, cuts: 1, customers: 20_000, firsts: 500, before: time.Second, ingest: 3 * time.Second,
			pairs: 3, run: time.Second, events: 100_000, queries: 50, archived: 100_000, rules: 10_000}
	}
	for _, one := range []struct{ said, size *int }{{&o.customers, &s.customers}, {&o.events, &s.events}, {&o.archived, &s.archived}} {
		if *one.said != 0 {
			*one.size = *one.said
		}
	}
	return s
}

// controlBench contains what the measurements of the control plane share, such as the PostgreSQL
// server and the table of results.
type controlBench struct {
	*bench
	controlSizes
	server    *localpg.Server
	databases int
	out       *section
}

// controlMeasured measures the targets of the control plane. A measurement that fails is a row
// without a figure, and the other measurements are still made.
func controlMeasured(o options, s *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	c := &controlBench{bench: b, controlSizes: sizesOf(o), out: s}
	if err := c.startPostgreSQL(); err != nil {
		return err
	}
	s.table("what", "target", "measured", "size")
	var problems []error
	for _, m := range []struct {
		what    string
		measure func() error
	}{
		{"a change in force", c.inForce}, {"customers", c.manyCustomers}, {"ingest", c.ingested}, {"Caddy with events and usage", c.besideEvents},
		{"queries of a customer", c.customerPage}, {"a month in the archive", c.monthArchived}, {"rules in one revision", c.rulesImported},
	} {
		if !strings.HasPrefix(m.what, o.part) {
			continue
		}
		began, started, closers := time.Now(), len(b.started), len(b.closers)
		if err := m.measure(); err != nil {
			s.row(m.what, "", "**not measured**: "+firstLine(err), "")
			problems = append(problems, fmt.Errorf("%s: %w", m.what, err))
		}
		c.endTo(started, closers)
		fmt.Fprintf(os.Stderr, "control: %s took %v\n", m.what, time.Since(began).Round(time.Second))
	}
	if err := errors.Join(problems...); err != nil {
		fmt.Fprintf(os.Stderr, "control: %v\n", err)
	}
	return nil
}

// endTo stops the processes and calls the closers that a measurement has added. The arguments are
// the numbers of processes and closers before the measurement.
func (c *controlBench) endTo(started, closers int) {
	for _, p := range slices.Backward(c.started[started:]) {
		p.stop()
	}
	for _, end := range slices.Backward(c.closers[closers:]) {
		end()
	}
	c.started, c.closers = c.started[:started], c.closers[:closers]
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.ReplaceAll(line, "|", "/")
}

// controlBench.reached writes a row of the table.
func (c *controlBench) reached(what, target string, met bool, measured, size string) {
	if !met {
		measured = "**missed**: " + measured
	}
	c.out.row(what, target, measured, size)
	fmt.Fprintf(os.Stderr, "control: %s: %s (%s)\n", what, measured, size)
}

// spread returns the median and the 99th percentile of the spans, and a text that contains these
// two and the longest span.
func spread(spans []time.Duration) (p50, p99 time.Duration, text string) {
	sorted := slices.Sorted(slices.Values(spans))
	if len(sorted) == 0 {
		return 0, 0, "nothing"
	}
	p50, p99 = percentile(sorted, 50), percentile(sorted, 99)
	return p50, p99, fmt.Sprintf("p50 %s, p99 %s, at most %s", formatSpan(p50), formatSpan(p99), formatSpan(sorted[len(sorted)-1]))
}

// formatSpan formats a duration with about three digits.
func formatSpan(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}
