// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// The rule of settlements (docs/reference/settlement.md): a request without a response is charged
// the reserved cost. If the status is in refund_on, or is not in count_if, it is charged nothing.
// Any other request is charged the cost in the response, or the default, or the reserved cost.
//
// The tests compare with a simple implementation of that rule, under random rules and traffic. The
// clock stands still, so no units expire or refill. The limits are so large that nothing is denied.

// accountRule is a rule and the units it reserves.
type accountRule struct {
	source   policy.Rule
	reserved int64
}

func randomStatuses(rng *rand.Rand) []policy.Statuses {
	var list []policy.Statuses
	for range rng.IntN(3) {
		list = append(list, [...]policy.Statuses{{From: 200, To: 299}, {From: 401, To: 401}, {From: 400, To: 499}, {From: 403, To: 403}, {From: 500, To: 599}}[rng.IntN(5)])
	}
	return list
}

// randomAccountRules returns rules that compile.
func randomAccountRules(t *testing.T, rng *rand.Rand) ([]accountRule, *Ruleset) {
	t.Helper()
	for {
		var rules []accountRule
		var sources []policy.Rule
		for i := range 1 + rng.IntN(4) {
			r := policy.Rule{Name: fmt.Sprintf("r%d", i), CountIf: randomStatuses(rng), RefundOn: randomStatuses(rng)}
			r.Limits = limittest.All(t, "1000000/1h"+[...]string{" fw", " sw", " tb", " fw"}[rng.IntN(4)])
			if rng.IntN(3) == 0 {
				r.Limits = append(r.Limits, limittest.All(t, "10000/1d sl")...)
			}
			if rng.IntN(4) == 0 {
				r.Action = policy.ActionLogOnly
			}
			reserved := 1 + rng.Int64N(20)
			if rng.IntN(2) == 0 {
				r.CostAfter = &policy.CostAfter{Estimate: reserved, Default: rng.Int64N(30), Max: 30 + rng.Int64N(20)}
				if rng.IntN(2) == 0 {
					r.CostAfter.Header = [...]string{"X-A", "x-b"}[rng.IntN(2)]
				} else {
					r.CostAfter.JSON = [...]string{"a", "b.c"}[rng.IntN(2)]
				}
			} else {
				r.Cost = []policy.Cost{{N: reserved}}
			}
			rules, sources = append(rules, accountRule{r, reserved}), append(sources, r)
		}
		rs, err := Compile(policy.Policy{Name: "n", Rules: sources})
		if err == nil { // if there is no error, every field has an effect
			return rules, rs
		}
	}
}

func randomAnswer(rng *rand.Rand) testAnswer {
	texts := [...]string{"0", "7", "12.5", "31", "49", "50", "-1", "many", "1e1", "9e9", ""}
	a := testAnswer{status: [...]int{0, 200, 204, 302, 401, 403, 404, 500, 503}[rng.IntN(9)], header: map[string]string{},
		json: map[string]string{}}
	for _, name := range []string{"X-A", "X-B"} {
		if rng.IntN(4) > 0 {
			a.header[name] = texts[rng.IntN(len(texts))]
		}
	}
	for _, path := range []string{"a", "b.c"} {
		if rng.IntN(4) > 0 {
			a.json[path] = texts[rng.IntN(len(texts))]
		}
	}
	return a
}

// owedCharge returns the charge that the rule of settlements prescribes.
func (r *accountRule) owedCharge(a testAnswer) (units int64, unreadable bool) {
	in := func(list []policy.Statuses) bool {
		for _, s := range list {
			if s.From <= a.status && a.status <= s.To {
				return true
			}
		}
		return false
	}
	c := r.source.CostAfter
	switch {
	case a.status == 0:
		return r.reserved, false
	case in(r.source.RefundOn), len(r.source.CountIf) > 0 && !in(r.source.CountIf):
		return 0, false
	case c == nil:
		return r.reserved, false
	}
	text := a.json[c.JSON]
	if c.Header != "" {
		text = a.header[match.CanonicalHeader(c.Header)]
	}
	if value, ok := new(big.Rat).SetString(text); ok && value.Sign() >= 0 && value.Cmp(big.NewRat(c.Max, 1)) <= 0 {
		units, err := strconv.ParseFloat(text, 64)
		if err == nil {
			if whole := int64(units); float64(whole) < units {
				return whole + 1, false
			}
			return int64(units), false
		}
	}
	if c.Default == 0 {
		return c.Estimate, true
	}
	return c.Default, true
}

// TestSettlementKeepsTheAccount: after any traffic, each counter has exactly the units that
// owedCharge prescribes for its requests.
func TestSettlementKeepsTheAccount(t *testing.T) {
	rng := seed.Random(t)
	for range 150 {
		rules, rs := randomAccountRules(t, rng)
		store := newCounters()
		owed := map[string]int64{} // by counter
		limitOf := map[string]counter.Limit{}
		var open []func()
		for range 40 {
			plan, d := store.ask(t, get("192.0.2."+strconv.Itoa(1+rng.IntN(2)), "/"), rs)
			if d.Denied() {
				t.Fatalf("refused: %+v", d)
			}
			var s Settlement
			plan.Settlement(&s)
			a, unreadable := randomAnswer(rng), 0
			for i := range plan.uses {
				units, bad := rules[i].owedCharge(a)
				if bad {
					unreadable++
				}
				for _, c := range plan.Checks()[plan.uses[i].checks[0]:plan.uses[i].checks[1]] {
					owed[string(c.Key)] += units
					limitOf[string(c.Key)] = *c.Limit
				}
			}
			open = append(open, func() {
				if _, got := store.settle(t, &s, a); got != unreadable {
					t.Fatalf("%+v: %d unreadable, want %d", a, got, unreadable)
				}
			})
			for len(open) > rng.IntN(6) { // responses end in any order
				i := rng.IntN(len(open))
				open[i]()
				open = append(open[:i], open[i+1:]...)
			}
		}
		for _, settle := range open {
			settle()
		}
		for key, want := range owed {
			slot, limit := store.slots[key], limitOf[key]
			var held [1]counter.Result // a reset returns the number of units in the counter
			counter.Decide(store.now, []counter.Check{{Limit: &limit, Op: counter.OpReset}}, []counter.Slot{slot}, held[:])
			if got := held[0].Granted; got != want {
				t.Fatalf("%s holds %d, want %d, of %+v", key, got, want, rules)
			}
		}
	}
}
