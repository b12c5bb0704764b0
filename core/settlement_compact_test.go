// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"github.com/penstock/penstock/internal/test/limittest"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// settlingPolicy returns a policy with a rule that does not settle, followed by rules that settle
// in each way.
func settlingPolicy(t testing.TB) *Ruleset {
	return mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "plain", Limits: limittest.All(t, "9/1m fw")},
		{Name: "two", Limits: limittest.All(t, "100/1m fw", "1000/day"), CostAfter: &policy.CostAfter{JSON: "a.n", Estimate: 5, Default: 8}},
		{Name: "refunds", Limits: limittest.All(t, "100/1m burst 120"), RefundOn: []policy.Statuses{{From: 500, To: 599}}},
	}})
}

// settlementOf returns the pending settlement of a request from 192.0.2.1.
func settlementOf(t testing.TB, rs ...*Ruleset) *Settlement {
	t.Helper()
	store, plan, request := newCounters(), new(Plan), get("192.0.2.1", "/")
	request.now = store.now
	for _, rs := range rs {
		plan.Add(rs, request)
	}
	store.take(plan.Checks(), plan.Results())
	plan.Decide()
	var s Settlement
	if !plan.Settlement(&s) {
		t.Fatal("nothing to settle")
	}
	return &s
}

// TestCompactSettlementHoldsEveryField: a settlement is the same after a round trip through the
// compact form. If a field were lost, units would never be refunded.
func TestCompactSettlementHoldsEveryField(t *testing.T) {
	rs := settlingPolicy(t)
	want := settlementOf(t, rs)
	for i := range want.charges {
		k := reflect.ValueOf(&want.charges[i]).Elem()
		for f := range k.NumField() {
			if name := k.Type().Field(f).Name; name != "_" && k.Field(f).IsZero() && i == 1 { // the calendar limit
				t.Errorf("the test says nothing of %s", name)
			}
		}
	}
	data := want.AppendCompact([]byte("before"), rs)
	var got Settlement
	if err := ReadSettlement(&got, rs, data[len("before"):]); err != nil {
		t.Fatal(err)
	}
	got.checks, want.checks, want.paths = nil, nil, nil
	want.source = 0 // only for a front that reads the response itself
	if diff := cmp.Diff(*want, got, cmp.AllowUnexported(Settlement{}, settlingRule{}, settledCharge{}, counter.Limit{}),
		cmp.Comparer(func(a, b *Ruleset) bool { return a == b }), cmp.Comparer(func(a, b *ruleAfter) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	clear(data)
	said := testAnswer{status: 200, json: map[string]string{"a.n": "3"}}
	a, _ := want.Checks(said)
	b, _ := got.Checks(said)
	if diff := cmp.Diff(a, b, cmp.AllowUnexported(counter.Limit{})); diff != "" || len(a) != 2 {
		t.Errorf("%d checks\n%s", len(a), diff)
	}
	if data := got.AppendCompact(nil, rs); len(data) != 1 {
		t.Errorf("after it was settled %x remains", data)
	}
}

// TestCompactSettlementIsOfOnePolicy: the compact form contains only one policy's charges, and
// another policy cannot read it.
func TestCompactSettlementIsOfOnePolicy(t *testing.T) {
	rs := settlingPolicy(t)
	other := mustCompile(t, policy.Policy{Name: "o", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "7/1m"), RefundOn: []policy.Statuses{{From: 500, To: 500}}}}})
	both := settlementOf(t, other, rs)
	var s Settlement
	for _, of := range []*Ruleset{rs, other} {
		if err := ReadSettlement(&s, of, both.AppendCompact(nil, of)); err != nil {
			t.Fatal(err)
		}
		alone, _ := settlementOf(t, of).Checks(testAnswer{status: 500})
		checks, _ := s.Checks(testAnswer{status: 500})
		if diff := cmp.Diff(alone, checks, cmp.AllowUnexported(counter.Limit{})); diff != "" {
			t.Error(diff)
		}
	}
	if err := ReadSettlement(&s, other, both.AppendCompact(nil, rs)); err == nil || len(s.rules)+len(s.charges) > 0 {
		t.Error("the settlement of another policy is read", err)
	}
}

// FuzzReadSettlement: no input makes the reader panic or allocate without bound, and every
// settlement it reads has valid checks.
func FuzzReadSettlement(f *testing.F) {
	rs := settlingPolicy(f)
	f.Add(settlementOf(f, rs).AppendCompact(nil, rs))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Settlement
		if ReadSettlement(&s, rs, data) != nil {
			return
		}
		written := s.AppendCompact(nil, rs)
		var again Settlement
		if err := ReadSettlement(&again, rs, written); err != nil || !bytes.Equal(again.AppendCompact(nil, rs), written) {
			t.Fatalf("%v\n%x\n%x", err, data, written)
		}
		for _, status := range []int{200, 500} {
			if checks, _ := again.Checks(testAnswer{status: status}); len(checks) > counter.ChecksMax {
				t.Fatalf("%d checks", len(checks))
			}
		}
	})
}
