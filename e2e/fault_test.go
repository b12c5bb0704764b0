// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// What a cell takes: some traffic, then the fault, then until all nodes decide again, and then all that is left of the limits.
const (
	faultBefore = 500 * time.Millisecond
	faultLasts  = 1500 * time.Millisecond
)

// cell is what was seen of a fault in a column.
type cell struct {
	Fault, Column string
	// Of the requests that begun while it lasted, by path: how many were decided, let through without a decision, answered with
	// 503, and not answered at all.
	Decided, Uncounted, Unavailable, Broken map[string]int
	// SlowestMillis is how long the slowest answer took while it lasted.
	SlowestMillis int64
	// Over and Under are how many more and fewer requests were let through by a decision than the limits allow, by path.
	Over, Under map[string]int
	// NormalMillis is how long after its end a request was last not decided.
	NormalMillis int64
}

// TestFaults tries the faults on all fronts. Whatever fails, requests are answered soon, as on_error says, limits hold, and all is as
// before when the fault is over.
func TestFaults(t *testing.T) {
	var tried []fault
	for _, f := range faults {
		if f.always || *allFaults {
			tried = append(tried, f)
		}
	}
	var table []cell
	for _, c := range columns {
		t.Run(c.name, func(t *testing.T) {
			if !*allFaults { // then there is no table of what was measured
				t.Parallel()
			}
			start := c.prepare(t, len(tried))
			for i, f := range tried {
				t.Run(f.name, func(t *testing.T) {
					on := f.redis(t)
					on.policy = c.policy()
					start(on, i, on.policy)
					seen := f.try(t, on)
					seen.Fault, seen.Column = f.name, c.name
					t.Log(seen.text())
					if *allFaults {
						table = append(table, seen)
					}
				})
			}
		})
	}
	if *allFaults && !t.Failed() {
		writeFaults(t, table)
	}
}

// try runs the fault under load and checks what holds of any.
func (f *fault) try(t *testing.T, on *nodeGroup) (c cell) {
	load := startTraffic(on.nodes, faultPaths)
	load.awaitDecided(t, time.Now(), len(on.nodes), faultPaths)
	pass(faultBefore)
	begin := time.Now()
	f.begin(on)
	if f.end != nil {
		pass(faultLasts)
		load.awaitAnswered(t, begin, len(on.nodes), faultPaths)
		f.end(on)
	}
	end := time.Now()
	c.NormalMillis = load.awaitDecided(t, end, len(on.nodes), faultPaths).Milliseconds()
	seen := append(load.end(), on.exhaust(t)...)
	c.count(seen, begin, end)
	f.judge(t, &c)
	return c
}

// pass waits: the fault is to last.
func pass(span time.Duration) { <-time.After(span) }

// exhaust asks each path at all nodes until nothing is left of its limit.
func (f *nodeGroup) exhaust(t *testing.T) (seen []exchange) {
	t.Helper()
	for _, path := range faultPaths {
		var left []*traffic
		for range 8 {
			left = append(left, startTraffic(f.nodes, []string{path}))
		}
		var ending sync.WaitGroup
		for _, l := range left {
			ending.Go(func() { l.awaitRefused(t, len(f.nodes)) })
		}
		ending.Wait()
		for _, l := range left {
			seen = append(seen, l.end()...)
		}
	}
	return seen
}

// count counts what was seen.
func (c *cell) count(seen []exchange, begin, end time.Time) {
	c.Decided, c.Uncounted, c.Unavailable, c.Broken = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	c.Over, c.Under = map[string]int{}, map[string]int{}
	for _, path := range faultPaths {
		admitted := 0
		for _, e := range seen {
			if e.path == path && e.kind == counted {
				admitted++
			}
		}
		c.Over[path], c.Under[path] = max(0, admitted-faultLimit), max(0, faultLimit-admitted)
	}
	for _, e := range seen {
		if e.begun.Add(e.took).Before(begin) || e.begun.After(end) {
			continue
		}
		c.SlowestMillis = max(c.SlowestMillis, e.took.Milliseconds())
		switch e.kind {
		case uncounted:
			c.Uncounted[e.path]++
		case unavailable:
			c.Unavailable[e.path]++
		case broken:
			c.Broken[e.path]++
		default:
			c.Decided[e.path]++
		}
	}
}

// judge holds what is promised of any fault.
func (f *fault) judge(t *testing.T, c *cell) {
	t.Helper()
	if slowest := time.Duration(c.SlowestMillis) * time.Millisecond; slowest > answerWithin {
		t.Errorf("an answer took %v", slowest)
	}
	for _, path := range faultPaths {
		most := 0
		if f.forgets {
			most = faultLimit
		}
		if c.Over[path] > most {
			t.Errorf("%s: %d beyond the limit", path, c.Over[path])
		}
	}
	if n := c.Unavailable[openPath]; n > 0 {
		t.Errorf("%d answers of 503 under on_error allow", n)
	}
	if n := c.Uncounted[shutPath]; n > 0 {
		t.Errorf("%d requests let through without a decision under on_error deny", n)
	}
	if f.harmless && c.Uncounted[openPath]+c.Unavailable[shutPath] > 0 {
		t.Logf("%d and %d requests without a decision", c.Uncounted[openPath], c.Unavailable[shutPath])
	}
}

// text says in a line what a client sees.
func (c *cell) text() string {
	return fmt.Sprintf("decided %v, uncounted %v, 503 %v, broken %v, slowest %d ms, over %v, under %v, normal after %d ms",
		c.Decided, c.Uncounted, c.Unavailable, c.Broken, c.SlowestMillis, c.Over, c.Under, c.NormalMillis)
}
