// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func rfc3339(tb testing.TB, text string) counter.Micros {
	tb.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		tb.Fatal(err)
	}
	return counter.Micros(at.UnixMicro())
}

// TestCalendarInThePlan tests keys, names and bounds of calendar limits in the policy's time zone,
// at the time of the front's clock.
func TestCalendarInThePlan(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	rs := mustCompile(t, policy.Policy{Name: "n", Timezone: berlin, Rules: []policy.Rule{
		{Name: "api", Limits: limittest.All(t, "10/day", "70/week", "300/month", "3000/year", "5/1d fixed_window")}}})
	a := get("192.0.2.1", "/")
	a.now = rfc3339(t, "2024-03-30T23:30:00+01:00") // the next day has 23 hours
	store := &mapStore{now: a.now}
	plan, d := store.ask(t, a, rs)
	wantKeys(t, plan, "rl1:n:api:{ip:192.0.2.1}:day:fw", "rl1:n:api:{ip:192.0.2.1}:week:fw",
		"rl1:n:api:{ip:192.0.2.1}:month:fw", "rl1:n:api:{ip:192.0.2.1}:year:fw", "rl1:n:api:{ip:192.0.2.1}:86400s:fw")
	if d.Policy != "api-1d" {
		t.Errorf("the decision is of %s", d.Policy)
	}
	want := `"api-day";q=10, "api-week";q=70, "api-month";q=300, "api-year";q=3000, "api-1d";q=5;w=86400`
	if f := HeadersOf(plan, &d); f.Policy != want {
		t.Errorf("told %s", f.Policy)
	}
	day := plan.Checks()[0].Bounds
	if *day != (counter.Bounds{rfc3339(t, "2024-03-29T00:00:00+01:00"), rfc3339(t, "2024-03-30T00:00:00+01:00"),
		rfc3339(t, "2024-03-31T00:00:00+01:00"), rfc3339(t, "2024-04-01T00:00:00+02:00")}) {
		t.Errorf("bounds of the day: %v", *day)
	}
	if plan.Checks()[4].Bounds != nil {
		t.Error("a window of 1d has boundaries")
	}
}

// TestCalendarBoundsAreRemembered: the bounds are computed once per period. The bounds always
// include the time of a store whose clock is one period behind or ahead.
func TestCalendarBoundsAreRemembered(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "10/day")}}})
	bounds := func(now counter.Micros) *counter.Bounds {
		a := get("192.0.2.1", "/")
		a.now = now
		var plan Plan
		plan.Add(rs, a)
		b := plan.Checks()[0].Bounds
		for _, store := range []counter.Micros{now - counter.Day, now, now + counter.Day} {
			if !b.Holds(store) {
				t.Errorf("at %d, a store at %d is outside of %v", now, store, *b)
			}
		}
		return b
	}
	noon := rfc3339(t, "2024-02-28T12:00:00Z")
	first := bounds(noon)
	for _, c := range []struct {
		after counter.Micros
		same  bool
	}{{counter.Hour, true}, {12*counter.Hour - 1, true}, {-12 * counter.Hour, true}, {12 * counter.Hour, false}, {12*counter.Hour - 1, false}, {-12*counter.Hour - 1, false}} {
		if next := bounds(noon + c.after); (next == first) != c.same {
			t.Errorf("after %s: the same is %v, want %v", c.after, next == first, c.same)
		}
	}
}

// TestCalendarAllocates: a calendar limit allocates only when a new period begins.
func TestCalendarAllocates(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "api", Limits: limittest.All(t, "10/day", "20/week", "30/month", "40/year")}}})
	var a policy.Attributes = &client{peer: netip.MustParseAddr("192.0.2.1"), now: 1_700_000_000 * counter.Second}
	var plan Plan
	plan.Add(rs, a)
	if n := testing.AllocsPerRun(100, func() {
		plan.Reset()
		plan.Add(rs, a)
		plan.Decide()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
