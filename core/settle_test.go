// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// answer is a response as a test writes it.
type answer struct {
	status       int
	header, json map[string]string
}

func (a answer) Status() int                       { return a.status }
func (a answer) Header(name string) (string, bool) { v, ok := a.header[name]; return v, ok }
func (a answer) JSON(path string) (string, bool)   { v, ok := a.json[path]; return v, ok }

// settle carries out what is due and returns the checks, and how many costs were unreadable.
func (c *counters) settle(t *testing.T, s *Settlement, a Answer) ([]Check, int) {
	t.Helper()
	checks, unreadable := s.Checks(a)
	results := make([]Result, len(checks))
	if err := ValidateChecks(checks, results); err != nil {
		t.Fatal(err)
	}
	if len(checks) > 0 {
		c.take(checks, results)
	}
	if again, _ := s.Checks(a); len(again) != 0 {
		t.Fatalf("asked again, it gives back again: %+v", again)
	}
	return checks, unreadable
}

// used returns the units that a counter holds.
func (c *counters) used(key string) int64 { return c.slots[key].State.Used }

// ofKey returns the key of the client at 192.0.2.1 under a rule of the policy n with a fixed window of a minute.
func ofKey(rule string) string { return "rl1:n:" + rule + ":{ip:192.0.2.1}:60s:fw" }

// TestSettlement is the table of docs/policy.md.
func TestSettlement(t *testing.T) {
	one := func(n int) []Statuses { return []Statuses{{n, n}} }
	said := &CostAfter{Header: "x-cost", Estimate: 10, Default: 20, Max: 50}
	inBody := &CostAfter{JSON: "usage.total", Estimate: 10}
	header := func(status int, cost string) answer {
		return answer{status: status, header: map[string]string{"X-Cost": cost}}
	}
	body := func(status int, cost string) answer {
		return answer{status: status, json: map[string]string{"usage.total": cost}}
	}
	ten := []Cost{{N: 10}}
	for _, c := range []struct {
		what       string
		rule       Rule
		answer     answer
		want       int64
		unreadable int
	}{
		{"said: more", Rule{CostAfter: said}, header(200, "35"), 35, 0},
		{"said: less", Rule{CostAfter: said}, header(200, "3"), 3, 0},
		{"said: as estimated", Rule{CostAfter: said}, header(200, "10"), 10, 0},
		{"said: nothing at all", Rule{CostAfter: said}, header(200, "0"), 0, 0},
		{"said: the most", Rule{CostAfter: said}, header(200, "50"), 50, 0},
		{"said: a fraction", Rule{CostAfter: said}, header(200, "3.2"), 4, 0},
		{"absurd: too much", Rule{CostAfter: said}, header(200, "51"), 20, 1},
		{"absurd: negative", Rule{CostAfter: said}, header(200, "-3"), 20, 1},
		{"unreadable", Rule{CostAfter: said}, header(200, "many"), 20, 1},
		{"unreadable: two", Rule{CostAfter: said}, header(200, "3, 4"), 20, 1},
		{"not said", Rule{CostAfter: said}, answer{status: 200}, 20, 1},
		{"not said, without a default", Rule{CostAfter: inBody}, answer{status: 200}, 10, 1},
		{"said in the body", Rule{CostAfter: inBody}, body(200, "77"), 77, 0},
		{"no response", Rule{CostAfter: said}, header(0, "3"), 10, 0},
		{"count_if: it counts", Rule{Cost: ten, CountIf: one(401)}, answer{status: 401}, 10, 0},
		{"count_if: it does not", Rule{Cost: ten, CountIf: one(401)}, answer{status: 200}, 0, 0},
		{"count_if: no response", Rule{Cost: ten, CountIf: one(401)}, answer{}, 10, 0},
		{"refund_on: it counts", Rule{Cost: ten, RefundOn: []Statuses{{500, 599}}}, answer{status: 499}, 10, 0},
		{"refund_on: it does not", Rule{Cost: ten, RefundOn: []Statuses{{500, 599}}}, answer{status: 500}, 0, 0},
		{"refund_on: no response", Rule{Cost: ten, RefundOn: []Statuses{{500, 599}}}, answer{}, 10, 0},
		{"both: counts", Rule{Cost: ten, CountIf: []Statuses{{400, 599}}, RefundOn: one(503)}, answer{status: 500}, 10, 0},
		{"both: refunded", Rule{Cost: ten, CountIf: []Statuses{{400, 599}}, RefundOn: one(503)}, answer{status: 503}, 0, 0},
		{"both: not counted", Rule{Cost: ten, CountIf: []Statuses{{400, 599}}, RefundOn: one(503)}, answer{status: 200}, 0, 0},
		{"all: refunded whatever it says", Rule{CostAfter: said, RefundOn: one(500)}, header(500, "35"), 0, 0},
		{"all: refunded, and nobody asks what it cost", Rule{CostAfter: said, RefundOn: one(500)}, header(500, "many"), 0, 0},
		{"all: counted as it says", Rule{CostAfter: said, CountIf: one(200)}, header(200, "35"), 35, 0},
		{"log_only", Rule{CostAfter: said, Action: ActionLogOnly}, header(200, "35"), 35, 0},
		{"nothing to settle", Rule{Cost: ten}, header(500, "35"), 10, 0},
	} {
		c.rule.Name, c.rule.Limits = "r", limits(t, "100/1m fw")
		rs, store := mustCompile(t, Policy{Name: "n", Rules: []Rule{c.rule}}), newCounters()
		plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
		var s Settlement
		if due := plan.Settlement(&s); due != (c.what != "nothing to settle") {
			t.Errorf("%s: due %v", c.what, due)
		}
		plan.Reset() // it owns its memory
		plan.Add(rs, get("203.0.113.77", "/somewhere/else"))
		_, unreadable := store.settle(t, &s, c.answer)
		if got := store.used(ofKey("r")); got != c.want || unreadable != c.unreadable {
			t.Errorf("%s: %d charged, %d unreadable, want %d and %d", c.what, got, unreadable, c.want, c.unreadable)
		}
	}
}

// TestSettlementOfSeveralRules: each has its own, a rule's limits have one, and a cost that two limits need is unreadable
// once.
func TestSettlementOfSeveralRules(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "plain", Limits: limits(t, "9/1m fw")},
		{Name: "two", Limits: limits(t, "100/1m fw", "1000/1h fw"), CostAfter: &CostAfter{JSON: "a.n", Estimate: 5, Default: 8}},
		{Name: "other", Limits: limits(t, "100/1m fw"), CostAfter: &CostAfter{JSON: "b", Estimate: 5}},
		{Name: "same", Limits: limits(t, "100/1m fw"), CostAfter: &CostAfter{JSON: "b", Estimate: 1}},
		{Name: "login", Limits: limits(t, "9/1m fw"), CountIf: []Statuses{{401, 401}}},
	}})
	store := newCounters()
	plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
	var s Settlement
	plan.Settlement(&s)
	if diff := cmp.Diff([]string{"a.n", "b"}, s.Paths()); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	checks, unreadable := store.settle(t, &s, answer{status: 200, json: map[string]string{"b": "3"}})
	if len(checks) != 5 || unreadable != 1 {
		t.Errorf("%d checks, %d unreadable", len(checks), unreadable)
	}
	for key, want := range map[string]int64{ofKey("plain"): 1, ofKey("two"): 8, "rl1:n:two:{ip:192.0.2.1}:3600s:fw": 8,
		ofKey("other"): 3, ofKey("same"): 3, ofKey("login"): 0} {
		if _, known := store.slots[key]; !known || store.used(key) != want {
			t.Errorf("%s: %d charged, want %d", key, store.used(key), want)
		}
	}
}

// TestExpect: what a response will be asked for is known before the request is decided, and charges nothing.
func TestExpect(t *testing.T) {
	failed := []Statuses{{500, 599}}
	rs := mustCompile(t, Policy{Name: "n",
		Rules: []Rule{
			{Name: "plain", Match: Match{Path: []string{"/plain", "/all"}}, Limits: limits(t, "9/1m fw")},
			{Name: "body", Match: Match{Path: []string{"/all"}}, Limits: limits(t, "9/1m fw"), CostAfter: &CostAfter{JSON: "a", Estimate: 5}},
			{Name: "field", Match: Match{Path: []string{"/all"}}, Limits: limits(t, "9/1m fw"), RefundOn: failed,
				CostAfter: &CostAfter{Header: "X-Cost", Estimate: 5}},
		}})
	var s Settlement
	var plan Plan
	plan.Add(rs, get("192.0.2.1", "/plain"))
	if plan.Expect(&s) || len(s.Paths()) != 0 || s.Awaits(answer{status: 200}) {
		t.Error("something is expected of a rule that settles nothing")
	}
	plan.Reset()
	plan.Add(rs, get("192.0.2.1", "/all"))
	if !plan.Expect(&s) || len(s.Paths()) != 1 || s.Paths()[0] != "a" {
		t.Errorf("paths %q", s.Paths())
	}
	if names := s.Headers(); len(names) != 1 || names[0] != "X-Cost" {
		t.Errorf("headers %q", names)
	}
	if !s.Awaits(answer{status: 200}) || s.Awaits(answer{status: 502}) ||
		s.Awaits(answer{status: 200, header: map[string]string{"X-Cost": "many"}}) {
		t.Error("a field is awaited where the request counts and the field is not there yet")
	}
	if _, known := s.CostNow(answer{status: 200}); known {
		t.Error("a cost is known that nobody reserved")
	}
	if checks, _ := s.Checks(answer{status: 502}); len(checks) != 0 {
		t.Errorf("%d checks about charges that were not made", len(checks))
	}
}

// TestNothingToSettle: of a request that was refused, degraded or not decided yet nothing is given back, for nothing of it
// is known to be charged.
func TestNothingToSettle(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "r", Limits: limits(t, "1/1m fw"), RefundOn: []Statuses{{500, 599}}},
		{Name: "shadow", Limits: limits(t, "1/1m fw"), RefundOn: []Statuses{{500, 599}}, Action: ActionLogOnly}}})
	store := newCounters()
	var s Settlement
	plan := new(Plan)
	plan.Add(rs, get("192.0.2.1", "/"))
	if plan.Settlement(&s) {
		t.Error("due before it is decided")
	}
	store.take(plan.Checks(), plan.Results()) // the store did it, but nobody heard
	if plan.Degrade(); plan.Settlement(&s) {
		t.Error("due after the store failed")
	}
	plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
	if due := plan.Settlement(&s); due || !d.Refused() {
		t.Error("due after a refusal")
	}
	if checks, _ := s.Checks(answer{status: 500}); len(checks) != 0 || len(s.Paths()) != 0 {
		t.Errorf("%+v", checks)
	}
}

// TestLogOnlySettlesWhatItCharged: of two limits of a log_only rule one may pass; only its charge comes back.
func TestLogOnlySettlesWhatItCharged(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "1/1m fw", "9/1h fw"),
		RefundOn: []Statuses{{500, 599}}, Action: ActionLogOnly}}})
	store := newCounters()
	store.ask(t, get("192.0.2.1", "/"), rs)
	plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
	var s Settlement
	plan.Settlement(&s)
	checks, _ := store.settle(t, &s, answer{status: 500})
	if len(checks) != 1 || store.used(ofKey("r")) != 1 || store.used(string(checks[0].Key)) != 1 {
		t.Errorf("%+v", checks)
	}
}

// TestCostNow: what is known when the response begins is what the client is told.
func TestCostNow(t *testing.T) {
	inHeader := &CostAfter{Header: "X-Cost", Estimate: 10, Default: 20}
	for _, c := range []struct {
		what   string
		rule   Rule
		answer answer
		want   int64
		known  bool
	}{
		{"said", Rule{CostAfter: inHeader}, answer{status: 200, header: map[string]string{"X-Cost": "35"}}, 35, true},
		{"not said", Rule{CostAfter: inHeader}, answer{status: 200}, 20, true},
		{"no response", Rule{CostAfter: inHeader}, answer{}, 0, false},
		{"in the body", Rule{CostAfter: &CostAfter{JSON: "n", Estimate: 10}}, answer{status: 200}, 0, false},
		{"in the body, but refunded", Rule{CostAfter: &CostAfter{JSON: "n", Estimate: 10}, RefundOn: []Statuses{{500, 599}}},
			answer{status: 502}, 0, true},
		{"refunded", Rule{Cost: []Cost{{N: 3}}, RefundOn: []Statuses{{500, 599}}}, answer{status: 502}, 0, true},
		{"nothing is told of costs", Rule{RefundOn: []Statuses{{500, 599}}}, answer{status: 502}, 0, false},
	} {
		c.rule.Name, c.rule.Limits = "r", limits(t, "100/1m fw", "500/1h fw")
		plan, _ := newCounters().ask(t, get("192.0.2.1", "/"), mustCompile(t, Policy{Name: "n", Rules: []Rule{c.rule,
			{Name: "last", Limits: limits(t, "9999/1m fw"), RefundOn: []Statuses{{599, 599}}}}}))
		var s Settlement
		plan.Settlement(&s)
		if got, known := s.CostNow(c.answer); got != c.want || known != c.known {
			t.Errorf("%s: %d, %v, want %d, %v", c.what, got, known, c.want, c.known)
		}
	}
	var none Settlement
	if _, known := none.CostNow(answer{status: 200}); known {
		t.Error("a settlement of nothing knows a cost")
	}
}

// TestLateGiveBackIsDropped: what comes back to a window that is over changes no other.
func TestLateGiveBackIsDropped(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "9/1m fw"), Cost: []Cost{{N: 4}},
		RefundOn: []Statuses{{500, 599}}}}})
	store := newCounters()
	plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
	var s Settlement
	plan.Settlement(&s)
	store.now += Minute
	store.ask(t, get("192.0.2.1", "/"), rs)
	if store.settle(t, &s, answer{status: 500}); store.used(ofKey("r")) != 4 {
		t.Errorf("%d charged in the next window, want 4", store.used(ofKey("r")))
	}
}

// TestCalendarSettlement: the boundaries go along.
func TestCalendarSettlement(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{{Name: "r", Limits: limits(t, "100/day"), Cost: []Cost{{N: 4}},
		RefundOn: []Statuses{{500, 599}}}}})
	store := newCounters()
	a := get("192.0.2.1", "/")
	a.now = store.now
	plan, d := store.ask(t, a, rs)
	var s Settlement
	if due := plan.Settlement(&s); !due || d.Refused() {
		t.Fatalf("due %v: %+v", due, d)
	}
	key := string(plan.Checks()[0].Key)
	plan.Reset()
	checks, _ := store.settle(t, &s, answer{status: 500})
	if len(checks) != 1 || checks[0].Bounds == nil || store.used(key) != 0 {
		t.Errorf("%+v: %d charged", checks, store.used(key))
	}
}

// TestSettlementDoesNotAllocate: neither where nothing is due nor, once its buffers have grown, where something is.
func TestSettlementDoesNotAllocate(t *testing.T) {
	for _, rule := range []Rule{{}, {RefundOn: []Statuses{{500, 599}}}, {CostAfter: &CostAfter{JSON: "n", Estimate: 1}}} {
		rule.Name, rule.Limits = "r", limits(t, "1000/1m", "9000/1h tb")
		plan, _ := newCounters().ask(t, get("192.0.2.1", "/"), mustCompile(t, Policy{Name: "n", Rules: []Rule{rule}}))
		var s Settlement
		var a Answer = answer{status: 500}
		run := func() {
			if plan.Settlement(&s) {
				s.Paths()
				s.CostNow(a)
				s.Checks(a)
			}
		}
		run()
		if n := testing.AllocsPerRun(200, run); n != 0 {
			t.Errorf("%+v: %v allocations", rule, n)
		}
	}
}
