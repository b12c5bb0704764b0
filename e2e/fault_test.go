// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// What a cell takes: some traffic, then the fault, then until all nodes decide again, and then all that is left of the limits.
const (
	faultBefore = 500 * time.Millisecond
	faultLasts  = 1500 * time.Millisecond
	faultShort  = time.Second // what takes no time is looked at for so long
	// normalWithin is how soon after a fault all is normal, on a machine that has nothing else to do.
	normalWithin = 3 * time.Second
)

// cell is what was seen of a fault in a column.
type cell struct {
	Fault, Column string
	Edited        bool // the policy was edited in the middle of it
	// Of the requests that begun while it lasted, or within faultShort of its beginning, by path: how many were decided, let through without a decision, answered with
	// 503, and not answered at all.
	Decided, Uncounted, Unavailable, Broken map[string]int
	// SlowestMillis is how long the slowest answer took while it lasted.
	SlowestMillis int64
	// Over and Under are how many more and fewer requests were let through by a decision than the limits allow, by path.
	Over, Under map[string]int
	// Lost is how many requests of the whole run were not decided, by path, and Astray how many of these neither while it lasted nor
	// until all was normal.
	Lost, Astray map[string]int
	// NormalMillis is how long after its end a request was last not decided.
	NormalMillis int64
	// Said is what was to be seen beside.
	Said string
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
			if seen := c.try(t, tried, false); *allFaults {
				table = append(table, seen...)
			}
		})
	}
	if !*allFaults {
		return
	}
	if !t.Failed() {
		writeFaults(t, table, false)
	}
	if table = tryEdited(t, tried); !t.Failed() {
		writeFaults(t, table, true)
	}
}

// tryEdited tries the faults once more, on all fronts at once, with the policy edited in the middle of each.
func tryEdited(t *testing.T, tried []fault) (table []cell) {
	tried = slices.DeleteFunc(slices.Clone(tried), func(f fault) bool { return f.edits })
	var mu sync.Mutex
	t.Run("policy edited in the middle", func(t *testing.T) {
		for _, c := range columns {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				seen := c.try(t, tried, true)
				mu.Lock()
				defer mu.Unlock()
				table = append(table, seen...)
			})
		}
	})
	return table
}

// try tries the faults on a front.
func (c *column) try(t *testing.T, tried []fault, edited bool) (table []cell) {
	start := c.prepare(t, len(tried))
	for i, f := range tried {
		t.Run(f.name, func(t *testing.T) {
			on := f.redis(t)
			on.policy = c.policy()
			if f.policy != nil {
				on.policy = f.policy(on.policy, c.words)
			}
			start(on, i, on.policy)
			seen := f.try(t, on, edited)
			seen.Fault, seen.Column, seen.Edited = f.name, c.name, edited
			seen.judge(t, &f, c)
			t.Log(seen.text())
			if !t.Failed() {
				table = append(table, seen)
			}
		})
	}
	return table
}

// try runs the fault under load.
func (f *fault) try(t *testing.T, on *nodeGroup, edited bool) (c cell) {
	load := startTraffic(on.nodes, faultPaths)
	load.awaitDecided(t, time.Now(), len(on.nodes), faultPaths)
	pass(faultBefore)
	begin := time.Now()
	end := f.last(load, on, begin, edited)
	c.NormalMillis = load.awaitDecided(t, end, len(on.nodes), faultPaths).Milliseconds()
	if edited {
		on.awaitLate()
	}
	if rest := faultShort - time.Since(begin); rest > 0 {
		pass(rest)
	}
	seen := append(load.end(), on.exhaust(t)...)
	c.Said = on.said
	c.count(seen, begin, end)
	return c
}

// last begins the fault, lets it last and ends it, and returns when that was. A policy that is edited is in force before the end, but
// where the fault ends by itself: there it is read meanwhile.
func (f *fault) last(load *traffic, on *nodeGroup, begin time.Time, edited bool) (end time.Time) {
	if f.end == nil {
		if edited {
			on.edit("", lateRule)
		}
		f.begin(on)
		return time.Now()
	}
	f.begin(on)
	if edited {
		pass(faultLasts / 3)
		on.edit("", lateRule)
		on.awaitLate()
		pass(faultLasts / 3)
	} else {
		pass(faultLasts)
	}
	load.awaitAnswered(on.t, begin, len(on.nodes), faultPaths)
	f.end(on)
	return time.Now()
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
	c.Over, c.Under, c.Lost, c.Astray = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	normal := end.Add(time.Duration(c.NormalMillis) * time.Millisecond)
	if short := begin.Add(faultShort); end.Before(short) {
		end = short
	}
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
		before := e.begun.Add(e.took).Before(begin)
		if !e.decided() {
			c.Lost[e.path]++
			if before || e.begun.After(normal) {
				c.Astray[e.path]++
			}
		}
		if before || e.begun.After(end) {
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
func (c *cell) judge(t *testing.T, f *fault, on *column) {
	t.Helper()
	within := answerWithin
	if *allFaults && !c.Edited { // nothing else runs
		within = time.Second
	}
	if slowest := time.Duration(c.SlowestMillis) * time.Millisecond; slowest > within {
		t.Errorf("an answer took %v", slowest)
	}
	if normal := time.Duration(c.NormalMillis) * time.Millisecond; normal > normalWithin && *allFaults {
		t.Errorf("it took %v until all was normal", normal)
	}
	for _, path := range faultPaths {
		most := 0
		if f.forgets {
			most = faultLimit
		}
		if c.Over[path] > most {
			t.Errorf("%s: %d beyond the limit", path, c.Over[path])
		}
		if most := f.mostUnder(c, on, path); c.Under[path] > most {
			t.Errorf("%s: %d fewer than the limit, and at most %d may be lost", path, c.Under[path], most)
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

// mostUnder returns how many units of a path's limit may be lost: those of requests that were not decided, for their charge may have
// been made. A front with leases may lose what each node had in hand, and what it was asking for, at the fault; and as much with each call
// that failed without one, on a machine that has other work. What was let through without a decision is charged when the store is
// back, and may have been charged before: twice for a call whose answer was lost.
func (f *fault) mostUnder(seen *cell, on *column, path string) int {
	carried := 0
	if path == openPath {
		carried = seen.Lost[path]
	}
	if on.words == "" {
		return seen.Lost[path] + carried
	}
	const inHand = faultLimit / 20 // of one grant, at most
	failed := seen.Astray[path]
	if f.harmless {
		failed = seen.Lost[path]
	}
	return inHand*(2*groupNodes+failed) + 2*carried
}

// text says in a line what a client sees.
func (c *cell) text() string {
	return fmt.Sprintf("decided %v, uncounted %v, 503 %v, broken %v, slowest %d ms, over %v, under %v, astray %v, normal after %d ms; %s",
		c.Decided, c.Uncounted, c.Unavailable, c.Broken, c.SlowestMillis, c.Over, c.Under, c.Astray, c.NormalMillis, c.Said)
}
