// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// The times of one run. It begins with some traffic and then has the fault. It waits until all
// nodes decide again, and finally uses up the limits.
const (
	faultBefore = 500 * time.Millisecond
	faultLasts  = 1500 * time.Millisecond
	faultShort  = time.Second // how long an instantaneous fault is observed
	// normalWithin bounds the recovery after a fault. It applies only in "make faults", on an
	// otherwise idle machine.
	normalWithin = 3 * time.Second
)

// cell records what one fault did to one column.
type cell struct {
	Fault, Column string
	Edited        bool // the policy was edited during the fault
	// The numbers of requests by path that began during the fault, or within faultShort after its
	// beginning. They were decided, allowed without a decision, answered with 503, or not answered.
	// Overloaded counts the answers with 503 that do not depend on on_error.
	Decided, Uncounted, Unavailable, Overloaded, Broken map[string]int
	// SlowestMillis is the longest wait for an answer during the fault.
	SlowestMillis int64
	// Over is the number of requests, by path, that were admitted by a decision beyond the limit.
	// Under is the number by which the admitted requests fall short of the limit.
	Over, Under map[string]int
	// Lost is the number of requests, by path, that were not decided in the whole run. Unexplained
	// counts the requests among them that were sent before the fault or after the recovery.
	Lost, Unexplained map[string]int
	// NormalMillis is the time from the end of the fault until the last request that was not
	// decided had ended.
	NormalMillis int64
	// Note is a remark in addition to the figures.
	Note string
}

// TestFaults runs the faults against all fronts. Whatever fails, requests are answered soon and in
// accordance with on_error, and no limit is exceeded. After the fault, everything works as before.
func TestFaults(t *testing.T) {
	t.Parallel()
	var tried []fault
	for _, f := range faults {
		if f.always || *allFaults {
			tried = append(tried, f)
		}
	}
	var table []cell
	for i, c := range columns {
		t.Run(c.name, func(t *testing.T) {
			own := tried
			if !*allFaults { // no measurements are written, so other tests may run meanwhile
				t.Parallel()
				own = examOr(tried, everyOther(tried, i/2+i%2))
			}
			if seen := c.runAll(t, own, false); *allFaults {
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

// everyOther returns every second fault, starting with the first or the second. Each front has two
// columns, one without leases and one with leases. "make test" runs each fault in only one of them:
// on some fronts without leases, and on others with leases.
func everyOther(tried []fault, first int) (some []fault) {
	for i := first % 2; i < len(tried); i += 2 {
		some = append(some, tried[i])
	}
	return some
}

// tryEdited runs the faults again, on all fronts at the same time. During each fault, it edits the
// policy.
func tryEdited(t *testing.T, tried []fault) (table []cell) {
	tried = slices.DeleteFunc(slices.Clone(tried), func(f fault) bool { return f.edits })
	var mu sync.Mutex
	t.Run("policy edited in the middle", func(t *testing.T) {
		for _, c := range columns {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				seen := c.runAll(t, tried, true)
				mu.Lock()
				defer mu.Unlock()
				table = append(table, seen...)
			})
		}
	})
	return table
}

// runAll runs the faults against one column.
func (c *column) runAll(t *testing.T, tried []fault, edited bool) (table []cell) {
	start := c.prepare(t, len(tried))
	for i, f := range tried {
		t.Run(f.name, func(t *testing.T) {
			on := f.redis(t)
			on.policy = c.policy()
			if f.policy != nil {
				on.policy = f.policy(on.policy, c.words)
			}
			start(on, i, on.policy)
			seen := f.run(t, on, edited)
			seen.Fault, seen.Column, seen.Edited = f.name, c.name, edited
			seen.check(t, &f, c)
			t.Log(seen.text())
			t.Logf("| %s | %s | %s |", f.name, c.name, seen.words())
			if !t.Failed() {
				table = append(table, seen)
			}
		})
	}
	return table
}

// fault.run runs the fault under load, and returns what was observed.
func (f *fault) run(t *testing.T, on *nodeGroup, edited bool) (c cell) {
	load := startTraffic(on.nodes, faultPaths)
	load.awaitDecided(t, time.Now(), len(on.nodes), faultPaths)
	pass(faultBefore)
	begin := time.Now()
	end := f.apply(load, on, begin, edited)
	c.NormalMillis = load.awaitDecided(t, end, len(on.nodes), faultPaths).Milliseconds()
	if edited {
		on.awaitLate()
	}
	if rest := faultShort - time.Since(begin); rest > 0 {
		pass(rest)
	}
	seen := append(load.end(), on.exhaust(t)...)
	c.Note = on.said
	c.count(seen, begin, end)
	return c
}

// fault.apply begins the fault, waits while it lasts, ends it, and returns the time of its end. If
// edited is set, it also edits the policy. The edit is then in force before the fault ends, unless
// the fault is instantaneous.
func (f *fault) apply(load *traffic, on *nodeGroup, begin time.Time, edited bool) (end time.Time) {
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

// pass lets the given time pass, for example while a fault lasts.
func pass(span time.Duration) { <-time.After(span) }

// nodeGroup.exhaust sends requests to each path of all nodes until the limits are used up.
func (f *nodeGroup) exhaust(t *testing.T) (seen []exchange) {
	t.Helper()
	for _, path := range faultPaths {
		var left []*traffic
		for range 8 {
			left = append(left, startTraffic(f.nodes, []string{path}))
		}
		var ending sync.WaitGroup
		for _, l := range left {
			ending.Go(func() { l.awaitDenied(t, len(f.nodes)) })
		}
		ending.Wait()
		for _, l := range left {
			seen = append(seen, l.end()...)
		}
	}
	return seen
}

// cell.count fills in the counts from the exchanges.
func (c *cell) count(seen []exchange, begin, end time.Time) {
	c.Decided, c.Uncounted, c.Unavailable, c.Broken = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	c.Overloaded = map[string]int{}
	c.Over, c.Under, c.Lost, c.Unexplained = map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
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
		c.Over[path], c.Under[path] = max(0, admitted-faultLimit()), max(0, faultLimit()-admitted)
	}
	for _, e := range seen {
		before := e.begun.Add(e.took).Before(begin)
		if !e.decided() {
			c.Lost[e.path]++
			if before || e.begun.After(normal) {
				c.Unexplained[e.path]++
			}
		}
		if before || e.begun.After(end) {
			continue
		}
		c.SlowestMillis = max(c.SlowestMillis, e.took.Milliseconds())
		switch e.kind {
		case uncounted:
			c.Uncounted[e.path]++
		case unavailable, overloaded:
			c.Unavailable[e.path]++
			if e.kind == overloaded {
				c.Overloaded[e.path]++
			}
		case broken:
			c.Broken[e.path]++
		default:
			c.Decided[e.path]++
		}
	}
}

// cell.check checks the promises that apply to every fault.
func (c *cell) check(t *testing.T, f *fault, on *column) {
	t.Helper()
	within := answerWithin
	if *allFaults && !c.Edited { // nothing else runs on the machine, so a second is enough
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
			most = faultLimit()
		}
		if c.Over[path] > most {
			t.Errorf("%s: %d beyond the limit", path, c.Over[path])
		}
		if most := f.mostUnder(c, on, path); c.Under[path] > most {
			t.Errorf("%s: %d fewer than the limit, and at most %d may be lost", path, c.Under[path], most)
		}
	}
	if n := c.Unavailable[allowPath] - c.Overloaded[allowPath]; n > 0 {
		t.Errorf("%d answers of 503 under on_error allow", n)
	}
	if n, most := c.Overloaded[allowPath], c.mostOverloaded(allowPath); n > most {
		t.Errorf("%d answers of 503 under on_error allow, as in an overload, and at most %d may be", n, most)
	}
	if n := c.Uncounted[denyPath]; n > 0 {
		t.Errorf("%d requests let through without a decision under on_error deny", n)
	}
	if f.harmless && c.Uncounted[allowPath]+c.Unavailable[denyPath] > 0 {
		t.Logf("%d and %d requests without a decision", c.Uncounted[allowPath], c.Unavailable[denyPath])
	}
}

// mostOverloaded bounds the number of requests of a path that are denied because they waited for
// too long behind others. The load of this test does not cause such waits. But a busy machine may
// sometimes stop a node for so long that all requests in the node have waited for too long.
func (c *cell) mostOverloaded(path string) int {
	if *allFaults && !c.Edited {
		return 0
	}
	return 4*groupNodes*faultClients + c.Decided[path]/50
}

// mostUnder bounds the units of a path's limit that may be lost. A request that was not decided may
// have been charged, or is charged as soon as the store is back. With leases, each node may also
// lose the units that it held and those that it had requested when the fault began. It may lose as
// many again with each call that failed because the machine was busy.
func (f *fault) mostUnder(seen *cell, on *column, path string) int {
	if on.words == "" {
		return seen.Lost[path]
	}
	inHand := faultLimit() / 20 // the maximum of one grant
	failed, carried := seen.Unexplained[path], 0
	if f.harmless {
		failed = seen.Lost[path]
	}
	if path == allowPath {
		carried = seen.Lost[path]
	}
	return inHand*(2*groupNodes+failed) + carried
}

// text returns a summary of the cell in one line.
func (c *cell) text() string {
	return fmt.Sprintf("decided %v, uncounted %v, 503 %v, broken %v, slowest %d ms, over %v, under %v, unexplained %v, normal after %d ms; %s",
		c.Decided, c.Uncounted, c.Unavailable, c.Broken, c.SlowestMillis, c.Over, c.Under, c.Unexplained, c.NormalMillis, c.Note)
}
