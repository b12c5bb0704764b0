// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// testAnswer is a response in a test.
type testAnswer struct {
	status       int
	header, json map[string]string
}

func (a testAnswer) Status() int                       { return a.status }
func (a testAnswer) Header(name string) (string, bool) { v, ok := a.header[name]; return v, ok }
func (a testAnswer) JSON(path string) (string, bool)   { v, ok := a.json[path]; return v, ok }

// mapStore.settle executes a settlement. It returns the checks and how many costs were unreadable.
func (c *mapStore) settle(t *testing.T, s *Settlement, a Answer) ([]counter.Check, int) {
	t.Helper()
	checks, unreadable := s.Checks(a)
	results := make([]counter.Result, len(checks))
	if err := counter.ValidateChecks(checks, results); err != nil {
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

// unitsUsed returns the number of units charged to a counter.
func (c *mapStore) unitsUsed(key string) int64 { return c.slots[key].State.Used }

// ofKey returns the key for 192.0.2.1 under a rule of policy n with a fixed window of a minute.
func ofKey(rule string) string { return "rl1:n:" + rule + ":{ip:192.0.2.1}:60s:fw" }

// TestSettlement tests the table of docs/reference/settlement.md.
func TestSettlement(t *testing.T) {
	one := func(n int) []policy.Statuses { return []policy.Statuses{{From: n, To: n}} }
	said := &policy.CostAfter{Header: "x-cost", Estimate: 10, Default: 20, Max: 50}
	inBody := &policy.CostAfter{JSON: "usage.total", Estimate: 10}
	header := func(status int, cost string) testAnswer {
		return testAnswer{status: status, header: map[string]string{"X-Cost": cost}}
	}
	body := func(status int, cost string) testAnswer {
		return testAnswer{status: status, json: map[string]string{"usage.total": cost}}
	}
	ten := []policy.Cost{{N: 10}}
	for _, c := range []struct {
		what       string
		rule       policy.Rule
		answer     testAnswer
		want       int64
		unreadable int
	}{
		{"said: more", policy.Rule{CostAfter: said}, header(200, "35"), 35, 0},
		{"said: less", policy.Rule{CostAfter: said}, header(200, "3"), 3, 0},
		{"said: as estimated", policy.Rule{CostAfter: said}, header(200, "10"), 10, 0},
		{"said: nothing at all", policy.Rule{CostAfter: said}, header(200, "0"), 0, 0},
		{"said: the most", policy.Rule{CostAfter: said}, header(200, "50"), 50, 0},
		{"said: a fraction", policy.Rule{CostAfter: said}, header(200, "3.2"), 4, 0},
		{"absurd: too much", policy.Rule{CostAfter: said}, header(200, "51"), 20, 1},
		{"absurd: negative", policy.Rule{CostAfter: said}, header(200, "-3"), 20, 1},
		{"unreadable", policy.Rule{CostAfter: said}, header(200, "many"), 20, 1},
		{"unreadable: two", policy.Rule{CostAfter: said}, header(200, "3, 4"), 20, 1},
		{"not said", policy.Rule{CostAfter: said}, testAnswer{status: 200}, 20, 1},
		{"not said, without a default", policy.Rule{CostAfter: inBody}, testAnswer{status: 200}, 10, 1},
		{"said in the body", policy.Rule{CostAfter: inBody}, body(200, "77"), 77, 0},
		{"no response", policy.Rule{CostAfter: said}, header(0, "3"), 10, 0},
		{"count_if: it counts", policy.Rule{Cost: ten, CountIf: one(401)}, testAnswer{status: 401}, 10, 0},
		{"count_if: it does not", policy.Rule{Cost: ten, CountIf: one(401)}, testAnswer{status: 200}, 0, 0},
		{"count_if: no response", policy.Rule{Cost: ten, CountIf: one(401)}, testAnswer{}, 10, 0},
		{"refund_on: it counts", policy.Rule{Cost: ten, RefundOn: []policy.Statuses{{From: 500, To: 599}}}, testAnswer{status: 499}, 10, 0},
		{"refund_on: it does not", policy.Rule{Cost: ten, RefundOn: []policy.Statuses{{From: 500, To: 599}}}, testAnswer{status: 500}, 0, 0},
		{"refund_on: no response", policy.Rule{Cost: ten, RefundOn: []policy.Statuses{{From: 500, To: 599}}}, testAnswer{}, 10, 0},
		{"both: counts", policy.Rule{Cost: ten, CountIf: []policy.Statuses{{From: 400, To: 599}}, RefundOn: one(503)}, testAnswer{status: 500}, 10, 0},
		{"both: refunded", policy.Rule{Cost: ten, CountIf: []policy.Statuses{{From: 400, To: 599}}, RefundOn: one(503)}, testAnswer{status: 503}, 0, 0},
		{"both: not counted", policy.Rule{Cost: ten, CountIf: []policy.Statuses{{From: 400, To: 599}}, RefundOn: one(503)}, testAnswer{status: 200}, 0, 0},
		{"all: refunded whatever it says", policy.Rule{CostAfter: said, RefundOn: one(500)}, header(500, "35"), 0, 0},
		{"all: refunded, and nobody asks what it cost", policy.Rule{CostAfter: said, RefundOn: one(500)}, header(500, "many"), 0, 0},
		{"all: counted as it says", policy.Rule{CostAfter: said, CountIf: one(200)}, header(200, "35"), 35, 0},
		{"log_only", policy.Rule{CostAfter: said, Action: policy.ActionLogOnly}, header(200, "35"), 35, 0},
		{"nothing to settle", policy.Rule{Cost: ten}, header(500, "35"), 10, 0},
	} {
		c.rule.Name, c.rule.Limits = "r", limittest.All(t, "100/1m fw")
		rs, store := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{c.rule}}), newCounters()
		plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
		var s Settlement
		if due := plan.Settlement(&s); due != (c.what != "nothing to settle") {
			t.Errorf("%s: due %v", c.what, due)
		}
		if s.Source() == 0 || s.Source() != plan.Source() {
			t.Errorf("%s: source %d, want %d", c.what, s.Source(), plan.Source())
		}
		plan.Reset() // the settlement owns its memory, so it must not change
		plan.Add(rs, get("203.0.113.77", "/somewhere/else"))
		_, unreadable := store.settle(t, &s, c.answer)
		if got := store.unitsUsed(ofKey("r")); got != c.want || unreadable != c.unreadable {
			t.Errorf("%s: %d charged, %d unreadable, want %d and %d", c.what, got, unreadable, c.want, c.unreadable)
		}
	}
}

// TestSettlementOfSeveralRules: each rule is settled separately, and all limits of a rule together.
// An unreadable cost is counted once, even if two limits need it.
func TestSettlementOfSeveralRules(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "plain", Limits: limittest.All(t, "9/1m fw")},
		{Name: "two", Limits: limittest.All(t, "100/1m fw", "1000/1h fw"), CostAfter: &policy.CostAfter{JSON: "a.n", Estimate: 5, Default: 8}},
		{Name: "other", Limits: limittest.All(t, "100/1m fw"), CostAfter: &policy.CostAfter{JSON: "b", Estimate: 5}},
		{Name: "same", Limits: limittest.All(t, "100/1m fw"), CostAfter: &policy.CostAfter{JSON: "b", Estimate: 1}},
		{Name: "login", Limits: limittest.All(t, "9/1m fw"), CountIf: []policy.Statuses{{From: 401, To: 401}}},
	}})
	store := newCounters()
	plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
	var s Settlement
	plan.Settlement(&s)
	if diff := cmp.Diff([]string{"a.n", "b"}, s.Paths()); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	checks, unreadable := store.settle(t, &s, testAnswer{status: 200, json: map[string]string{"b": "3"}})
	if len(checks) != 5 || unreadable != 1 {
		t.Errorf("%d checks, %d unreadable", len(checks), unreadable)
	}
	for key, want := range map[string]int64{ofKey("plain"): 1, ofKey("two"): 8, "rl1:n:two:{ip:192.0.2.1}:3600s:fw": 8,
		ofKey("other"): 3, ofKey("same"): 3, ofKey("login"): 0} {
		if _, known := store.slots[key]; !known || store.unitsUsed(key) != want {
			t.Errorf("%s: %d charged, want %d", key, store.unitsUsed(key), want)
		}
	}
}

// TestExpect: Expect reports before the decision which parts of the response will be needed, and
// charges nothing.
func TestExpect(t *testing.T) {
	failed := []policy.Statuses{{From: 500, To: 599}}
	rs := mustCompile(t, policy.Policy{Name: "n",
		Rules: []policy.Rule{
			{Name: "plain", Match: policy.Match{Path: []string{"/plain", "/all"}}, Limits: limittest.All(t, "9/1m fw")},
			{Name: "body", Match: policy.Match{Path: []string{"/all"}}, Limits: limittest.All(t, "9/1m fw"), CostAfter: &policy.CostAfter{JSON: "a", Estimate: 5}},
			{Name: "field", Match: policy.Match{Path: []string{"/all"}}, Limits: limittest.All(t, "9/1m fw"), RefundOn: failed,
				CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 5}},
		}})
	var s Settlement
	var plan Plan
	plan.Add(rs, get("192.0.2.1", "/plain"))
	if plan.Expect(&s) || len(s.Paths()) != 0 || s.Awaits(testAnswer{status: 200}) {
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
	if !s.Awaits(testAnswer{status: 200}) || s.Awaits(testAnswer{status: 502}) ||
		s.Awaits(testAnswer{status: 200, header: map[string]string{"X-Cost": "many"}}) {
		t.Error("a field is awaited where the request counts and the field is not there yet")
	}
	if _, known := s.CostNow(testAnswer{status: 200}); known {
		t.Error("a cost is known that nobody reserved")
	}
	if checks, _ := s.Checks(testAnswer{status: 502}); len(checks) != 0 {
		t.Errorf("%d checks about charges that were not made", len(checks))
	}
}

// TestNothingToSettle: a request that was denied, degraded or not decided refunds nothing, because
// no charge is known.
func TestNothingToSettle(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "r", Limits: limittest.All(t, "1/1m fw"), RefundOn: []policy.Statuses{{From: 500, To: 599}}},
		{Name: "shadow", Limits: limittest.All(t, "1/1m fw"), RefundOn: []policy.Statuses{{From: 500, To: 599}}, Action: policy.ActionLogOnly}}})
	store := newCounters()
	var s Settlement
	plan := new(Plan)
	plan.Add(rs, get("192.0.2.1", "/"))
	if plan.Settlement(&s) {
		t.Error("due before it is decided")
	}
	store.take(plan.Checks(), plan.Results()) // the store charged the request, but its answer was lost
	if plan.Degrade(); plan.Settlement(&s) {
		t.Error("due after the store failed")
	}
	plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
	if due := plan.Settlement(&s); due || !d.Denied() {
		t.Error("due after a denial")
	}
	if checks, _ := s.Checks(testAnswer{status: 500}); len(checks) != 0 || len(s.Paths()) != 0 {
		t.Errorf("%+v", checks)
	}
}

// TestLogOnlySettlesItsCharges: if one of two limits of a log_only rule is exceeded, only the
// charge to the other limit is refunded.
func TestLogOnlySettlesItsCharges(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m fw", "9/1h fw"),
		RefundOn: []policy.Statuses{{From: 500, To: 599}}, Action: policy.ActionLogOnly}}})
	store := newCounters()
	store.ask(t, get("192.0.2.1", "/"), rs)
	plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
	var s Settlement
	plan.Settlement(&s)
	checks, _ := store.settle(t, &s, testAnswer{status: 500})
	if len(checks) != 1 || store.unitsUsed(ofKey("r")) != 1 || store.unitsUsed(string(checks[0].Key)) != 1 {
		t.Errorf("%+v", checks)
	}
}

// TestCostNow: the client receives the cost that is known when the response begins.
func TestCostNow(t *testing.T) {
	inHeader := &policy.CostAfter{Header: "X-Cost", Estimate: 10, Default: 20}
	for _, c := range []struct {
		what   string
		rule   policy.Rule
		answer testAnswer
		want   int64
		known  bool
	}{
		{"said", policy.Rule{CostAfter: inHeader}, testAnswer{status: 200, header: map[string]string{"X-Cost": "35"}}, 35, true},
		{"not said", policy.Rule{CostAfter: inHeader}, testAnswer{status: 200}, 20, true},
		{"no response", policy.Rule{CostAfter: inHeader}, testAnswer{}, 0, false},
		{"in the body", policy.Rule{CostAfter: &policy.CostAfter{JSON: "n", Estimate: 10}}, testAnswer{status: 200}, 0, false},
		{"in the body, but refunded", policy.Rule{CostAfter: &policy.CostAfter{JSON: "n", Estimate: 10}, RefundOn: []policy.Statuses{{From: 500, To: 599}}},
			testAnswer{status: 502}, 0, true},
		{"refunded", policy.Rule{Cost: []policy.Cost{{N: 3}}, RefundOn: []policy.Statuses{{From: 500, To: 599}}}, testAnswer{status: 502}, 0, true},
		{"nothing is told of costs", policy.Rule{RefundOn: []policy.Statuses{{From: 500, To: 599}}}, testAnswer{status: 502}, 0, false},
	} {
		c.rule.Name, c.rule.Limits = "r", limittest.All(t, "100/1m fw", "500/1h fw")
		plan, _ := newCounters().ask(t, get("192.0.2.1", "/"), mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{c.rule,
			{Name: "last", Limits: limittest.All(t, "9999/1m fw"), RefundOn: []policy.Statuses{{From: 599, To: 599}}}}}))
		var s Settlement
		plan.Settlement(&s)
		if got, known := s.CostNow(c.answer); got != c.want || known != c.known {
			t.Errorf("%s: %d, %v, want %d, %v", c.what, got, known, c.want, c.known)
		}
	}
	var none Settlement
	if _, known := none.CostNow(testAnswer{status: 200}); known {
		t.Error("a settlement of nothing knows a cost")
	}
}

// TestLateRefundIsDropped: a refund to a window that has ended changes no other window.
func TestLateRefundIsDropped(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "9/1m fw"), Cost: []policy.Cost{{N: 4}},
		RefundOn: []policy.Statuses{{From: 500, To: 599}}}}})
	store := newCounters()
	plan, _ := store.ask(t, get("192.0.2.1", "/"), rs)
	var s Settlement
	plan.Settlement(&s)
	store.now += counter.Minute
	store.ask(t, get("192.0.2.1", "/"), rs)
	if store.settle(t, &s, testAnswer{status: 500}); store.unitsUsed(ofKey("r")) != 4 {
		t.Errorf("%d charged in the next window, want 4", store.unitsUsed(ofKey("r")))
	}
}

// TestCalendarSettlement: a settlement carries the calendar bounds of its charge.
func TestCalendarSettlement(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "100/day"), Cost: []policy.Cost{{N: 4}},
		RefundOn: []policy.Statuses{{From: 500, To: 599}}}}})
	store := newCounters()
	a := get("192.0.2.1", "/")
	a.now = store.now
	plan, d := store.ask(t, a, rs)
	var s Settlement
	if due := plan.Settlement(&s); !due || d.Denied() {
		t.Fatalf("due %v: %+v", due, d)
	}
	key := string(plan.Checks()[0].Key)
	plan.Reset()
	checks, _ := store.settle(t, &s, testAnswer{status: 500})
	if len(checks) != 1 || checks[0].Bounds == nil || store.unitsUsed(key) != 0 {
		t.Errorf("%+v: %d charged", checks, store.unitsUsed(key))
	}
}

// TestSettlementDoesNotAllocate: a settlement allocates nothing once its buffers have grown.
func TestSettlementDoesNotAllocate(t *testing.T) {
	for _, rule := range []policy.Rule{{}, {RefundOn: []policy.Statuses{{From: 500, To: 599}}}, {CostAfter: &policy.CostAfter{JSON: "n", Estimate: 1}}} {
		rule.Name, rule.Limits = "r", limittest.All(t, "1000/1m", "9000/1h tb")
		plan, _ := newCounters().ask(t, get("192.0.2.1", "/"), mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{rule}}))
		var s Settlement
		var a Answer = testAnswer{status: 500}
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
