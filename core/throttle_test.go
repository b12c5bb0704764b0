// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func throttled(t *testing.T, name, limit string, maxDelay Micros) Rule {
	t.Helper()
	return Rule{Name: name, Limits: limits(t, limit), Action: ActionThrottle,
		Throttle: &Throttle{MaxDelay: maxDelay, MaxWaiting: 9}}
}

// TestThrottleDelays: what only throttle rules refuse may wait; after the delay it passes, and its rule says delayed.
func TestThrottleDelays(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{throttled(t, "slow", "10/1s burst 1", Second),
		{Name: "wide", Limits: limits(t, "100/1m fw")}}})
	store := newCounters()
	if _, d := store.ask(t, get("192.0.2.1", "/"), rs); d.Refused() || d.Delay != 0 {
		t.Fatalf("first: %+v", d)
	}
	plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
	if d.Status != 429 || d.Outcome != OutcomeDenied || d.Delay != 100*Millisecond || d.RetryAfter != d.Delay {
		t.Fatalf("second: %+v", d)
	}
	want := []Throttled{{Check: 0, Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 9}}}
	if diff := cmp.Diff(want, plan.Throttled()); diff != "" {
		t.Errorf("throttled (-want +got):\n%s", diff)
	}
	store.now += d.Delay
	store.take(plan.Checks(), plan.Results())
	d = plan.Decide()
	plan.Delayed()
	if d.Refused() || d.Delay != 0 {
		t.Errorf("after the delay: %+v", d)
	}
	wantOutcomes(t, plan, map[string]string{"n/slow": "delayed", "n/wide": "allowed"})
	if n := testing.AllocsPerRun(100, func() { plan.Throttled() }); n != 0 {
		t.Errorf("Throttled allocates %v times", n)
	}
}

// TestThrottleIsFinal: beyond the delay, when another limit refuses, when the cost never passes and when the store does
// not answer there is nothing to wait for.
func TestThrottleIsFinal(t *testing.T) {
	for _, c := range []struct {
		what  string
		rules []Rule
		want  Micros
	}{
		{"as long as may be", []Rule{throttled(t, "a", "10/1s burst 1", 100*Millisecond)}, 100 * Millisecond},
		{"a microsecond longer", []Rule{throttled(t, "a", "10/1s burst 1", 100*Millisecond-1)}, 0},
		{"the longest of two", []Rule{throttled(t, "a", "10/1s burst 1", Second), throttled(t, "b", "5/1s burst 1", Second)},
			200 * Millisecond},
		{"one of two is too long", []Rule{throttled(t, "a", "10/1s burst 1", Second), throttled(t, "b", "5/1s burst 1",
			199*Millisecond)}, 0},
		{"one that has room is too long", []Rule{throttled(t, "a", "10/1s burst 1", Second), throttled(t, "b", "10/1s burst 9",
			99*Millisecond)}, 0},
		{"one that has room is as long as may be", []Rule{throttled(t, "a", "10/1s burst 1", Second), throttled(t, "b",
			"10/1s burst 9", 100*Millisecond)}, 100 * Millisecond},
		{"another refuses too", []Rule{throttled(t, "a", "10/1s burst 1", Second), {Name: "b", Limits: limits(t, "1/1m fw")}}, 0},
		{"another refuses too, but only reports", []Rule{throttled(t, "a", "10/1s burst 1", Second),
			{Name: "b", Limits: limits(t, "1/1m fw"), Action: ActionLogOnly}}, 100 * Millisecond},
		{"another refuses alone", []Rule{throttled(t, "a", "10/1s burst 9", Second), {Name: "b", Limits: limits(t, "1/1m fw")}}, 0},
	} {
		rs, store := mustCompile(t, Policy{Name: "n", Rules: c.rules}), newCounters()
		store.ask(t, get("192.0.2.1", "/"), rs)
		if _, d := store.ask(t, get("192.0.2.1", "/"), rs); d.Delay != c.want || d.Status != 429 {
			t.Errorf("%s: %+v, want a delay of %d", c.what, d, c.want)
		}
	}
	rs := mustCompile(t, Policy{Name: "n", OnError: OnErrorDeny, Rules: []Rule{throttled(t, "a", "10/1s burst 1", Second)}})
	var plan Plan
	plan.Add(rs, get("192.0.2.1", "/"))
	if d := plan.Degrade(); d.Delay != 0 || d.Status != 503 {
		t.Errorf("degraded: %+v", d)
	}
	if plan.Delayed(); plan.Outcomes()[0].Outcome != OutcomeDegradedDenied {
		t.Errorf("degraded, and delayed: %v", plan.Outcomes())
	}
	plan.Reset()
	plan.Add(rs, get("192.0.2.1", "/"))
	plan.Checks()[0].Cost = 2
	store := newCounters()
	store.take(plan.Checks(), plan.Results())
	if d := plan.Decide(); d.Delay != 0 || d.RetryAfter != Never {
		t.Errorf("a cost that never passes: %+v", d)
	}
}

// TestThrottledListsCounters: one for each limit of a throttle rule in play, none where nothing is asked.
func TestThrottledListsCounters(t *testing.T) {
	two := throttled(t, "two", "10/1s burst 1", Second)
	two.Limits = append(two.Limits, limits(t, "100/1m")...)
	rs := mustCompile(t, Policy{Name: "n", Exempt: []Listed{{IP: prefixes("192.0.2.9/32")}}, Rules: []Rule{
		{Name: "plain", Limits: limits(t, "9/1m")}, two,
		{Name: "no", Action: ActionBlock, Match: Match{Path: []string{"/no"}}}}})
	for _, c := range []struct {
		peer, path string
		want       int
	}{{"192.0.2.1", "/", 2}, {"192.0.2.9", "/", 0}, {"192.0.2.1", "/no", 0}} {
		var plan Plan
		plan.Add(rs, get(c.peer, c.path))
		got := plan.Throttled()
		if len(got) != c.want || c.want == 2 && (got[0].Check != 1 || got[1].Check != 2) {
			t.Errorf("%s for %s: %+v, want %d", c.peer, c.path, got, c.want)
		}
	}
}

// TestTurnsOfThoseWhoGiveUp: one that does not wait for a throttle rule leaves its shard to the next.
func TestTurnsOfThoseWhoGiveUp(t *testing.T) {
	rs, store := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "all", PerNone: true, Shards: 4, Limits: limits(t, "40/1h fw")}, throttled(t, "slow", "1/1s fw", Second)}}), newCounters()
	for n := 0; ; n++ {
		if _, d := store.ask(t, get("192.0.2.1", "/"), rs); d.Refused() {
			t.Fatalf("request %d: %+v", n, d)
		}
		if n == 39 {
			break
		}
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		if d.Delay == 0 {
			t.Fatalf("nothing to wait for: %+v", d)
		}
		plan.GiveUp()
		plan.GiveUp() // changes nothing
		store.now += Second
	}
}
