// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func throttleRule(t *testing.T, name, limit string, maxDelay counter.Micros) policy.Rule {
	t.Helper()
	return policy.Rule{Name: name, Limits: limittest.All(t, limit), Action: policy.ActionThrottle,
		Throttle: &policy.Throttle{MaxDelay: maxDelay, MaxWaiting: 9}}
}

// TestThrottleDelays: a request that only throttle rules deny can wait. After the delay it passes,
// and the rule's outcome is delayed.
func TestThrottleDelays(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{throttleRule(t, "slow", "10/1s burst 1", counter.Second),
		{Name: "wide", Limits: limittest.All(t, "100/1m fw")}}})
	store := newCounters()
	if _, d := store.ask(t, get("192.0.2.1", "/"), rs); d.Denied() || d.Delay != 0 {
		t.Fatalf("first: %+v", d)
	}
	plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
	if d.Status != 429 || d.Outcome != OutcomeDenied || d.Delay != 100*counter.Millisecond || d.RetryAfter != d.Delay {
		t.Fatalf("second: %+v", d)
	}
	want := []Throttled{{Check: 0, Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 9}}}
	if diff := cmp.Diff(want, plan.Throttled()); diff != "" {
		t.Errorf("throttled (-want +got):\n%s", diff)
	}
	store.now += d.Delay
	store.take(plan.Checks(), plan.Results())
	d = plan.Decide()
	plan.Delayed()
	if d.Denied() || d.Delay != 0 {
		t.Errorf("after the delay: %+v", d)
	}
	wantOutcomes(t, plan, map[string]string{"n/slow": "delayed", "n/wide": "allowed"})
	if n := testing.AllocsPerRun(100, func() { plan.Throttled() }); n != 0 {
		t.Errorf("Throttled allocates %v times", n)
	}
}

// TestThrottleIsFinal: a request does not wait if the delay would exceed max_delay, if another
// limit denies the request, if its cost can never pass, or if the store does not answer.
func TestThrottleIsFinal(t *testing.T) {
	for _, c := range []struct {
		what  string
		rules []policy.Rule
		want  counter.Micros
	}{
		{"as long as may be", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", 100*counter.Millisecond)}, 100 * counter.Millisecond},
		{"a microsecond longer", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", 100*counter.Millisecond-1)}, 0},
		{"the longest of two", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second), throttleRule(t, "b", "5/1s burst 1", counter.Second)},
			200 * counter.Millisecond},
		{"one of two is too long", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second), throttleRule(t, "b", "5/1s burst 1",
			199*counter.Millisecond)}, 0},
		{"one that has room is too long", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second), throttleRule(t, "b", "10/1s burst 9",
			99*counter.Millisecond)}, 0},
		{"one that has room is as long as may be", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second), throttleRule(t, "b",
			"10/1s burst 9", 100*counter.Millisecond)}, 100 * counter.Millisecond},
		{"another denies too", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second), {Name: "b", Limits: limittest.All(t, "1/1m fw")}}, 0},
		{"another denies too, but only reports", []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second),
			{Name: "b", Limits: limittest.All(t, "1/1m fw"), Action: policy.ActionLogOnly}}, 100 * counter.Millisecond},
		{"another denies alone", []policy.Rule{throttleRule(t, "a", "10/1s burst 9", counter.Second), {Name: "b", Limits: limittest.All(t, "1/1m fw")}}, 0},
	} {
		rs, store := mustCompile(t, policy.Policy{Name: "n", Rules: c.rules}), newCounters()
		store.ask(t, get("192.0.2.1", "/"), rs)
		if _, d := store.ask(t, get("192.0.2.1", "/"), rs); d.Delay != c.want || d.Status != 429 {
			t.Errorf("%s: %+v, want a delay of %d", c.what, d, c.want)
		}
	}
	rs := mustCompile(t, policy.Policy{Name: "n", OnError: counter.OnErrorDeny, Rules: []policy.Rule{throttleRule(t, "a", "10/1s burst 1", counter.Second)}})
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
	if d := plan.Decide(); d.Delay != 0 || d.RetryAfter != counter.Never {
		t.Errorf("a cost that never passes: %+v", d)
	}
}

// TestThrottledListsCounters: each limit of a throttle rule in play has an entry. A request without
// checks has none.
func TestThrottledListsCounters(t *testing.T) {
	two := throttleRule(t, "two", "10/1s burst 1", counter.Second)
	two.Limits = append(two.Limits, limittest.All(t, "100/1m")...)
	rs := mustCompile(t, policy.Policy{Name: "n", Exempt: []policy.Listed{{IP: prefixes("192.0.2.9/32")}}, Rules: []policy.Rule{
		{Name: "plain", Limits: limittest.All(t, "9/1m")}, two,
		{Name: "no", Action: policy.ActionBlock, Match: policy.Match{Path: []string{"/no"}}}}})
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

// TestCanceledRequestsLeaveTheirShard: a request that stops waiting for a throttle rule leaves its
// shard to the next request.
func TestCanceledRequestsLeaveTheirShard(t *testing.T) {
	rs, store := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "all", PerNone: true, Shards: 4, Limits: limittest.All(t, "40/1h fw")}, throttleRule(t, "slow", "1/1s fw", counter.Second)}}), newCounters()
	for n := 0; ; n++ {
		if _, d := store.ask(t, get("192.0.2.1", "/"), rs); d.Denied() {
			t.Fatalf("request %d: %+v", n, d)
		}
		if n == 39 {
			break
		}
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		if d.Delay == 0 {
			t.Fatalf("nothing to wait for: %+v", d)
		}
		plan.Abandon()
		plan.Abandon() // changes nothing
		store.now += counter.Second
	}
}
