// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"
)

// The sentence that settlements keep (docs/policy.md): a request is charged what was reserved if there was no response;
// nothing if the status is in refund_on, or is not in count_if; else what the response says, or the default; else what was
// reserved.
//
// Here it is kept by an account that does it the slow and obvious way, beside random traffic under random rules. The clock
// stands still, so that nothing comes back by itself, and the limits are large enough for nothing to be refused for debt.

// accountRule is a rule with what the account knows of it.
type accountRule struct {
	source   Rule
	reserved int64
}

func randomStatuses(rng *rand.Rand) []Statuses {
	var list []Statuses
	for range rng.IntN(3) {
		list = append(list, [...]Statuses{{200, 299}, {401, 401}, {400, 499}, {403, 403}, {500, 599}}[rng.IntN(5)])
	}
	return list
}

// randomAccountRules returns rules that compile.
func randomAccountRules(t *testing.T, rng *rand.Rand) ([]accountRule, *Ruleset) {
	t.Helper()
	for {
		var rules []accountRule
		var sources []Rule
		for i := range 1 + rng.IntN(4) {
			r := Rule{Name: fmt.Sprintf("r%d", i), CountIf: randomStatuses(rng), RefundOn: randomStatuses(rng)}
			r.Limits = limits(t, "1000000/1h"+[...]string{" fw", " sw", " tb", " fw"}[rng.IntN(4)])
			if rng.IntN(3) == 0 {
				r.Limits = append(r.Limits, limits(t, "10000/1d sl")...)
			}
			if rng.IntN(4) == 0 {
				r.Action = ActionLogOnly
			}
			reserved := 1 + rng.Int64N(20)
			if rng.IntN(2) == 0 {
				r.CostAfter = &CostAfter{Estimate: reserved, Default: rng.Int64N(30), Max: 30 + rng.Int64N(20)}
				if rng.IntN(2) == 0 {
					r.CostAfter.Header = [...]string{"X-A", "x-b"}[rng.IntN(2)]
				} else {
					r.CostAfter.JSON = [...]string{"a", "b.c"}[rng.IntN(2)]
				}
			} else {
				r.Cost = []Cost{{N: reserved}}
			}
			rules, sources = append(rules, accountRule{r, reserved}), append(sources, r)
		}
		rs, err := Compile(Policy{Name: "n", Rules: sources})
		if err == nil { // otherwise something is said without effect
			return rules, rs
		}
	}
}

func randomAnswer(rng *rand.Rand) answer {
	texts := [...]string{"0", "7", "12.5", "31", "49", "50", "-1", "many", "1e1", "9e9", ""}
	a := answer{status: [...]int{0, 200, 204, 302, 401, 403, 404, 500, 503}[rng.IntN(9)], header: map[string]string{},
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

// owed is the sentence.
func (r *accountRule) owed(a answer) (units int64, unreadable bool) {
	in := func(list []Statuses) bool {
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
		text = a.header[canonicalHeader(c.Header)]
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

// TestSettlementKeepsTheAccount: after any traffic each counter holds what the sentence says, to the unit.
func TestSettlementKeepsTheAccount(t *testing.T) {
	rng := randomSource(t)
	for range 150 {
		rules, rs := randomAccountRules(t, rng)
		store := newCounters()
		owed := map[string]int64{} // by counter
		limitOf := map[string]Limit{}
		var open []func()
		for range 40 {
			plan, d := store.ask(t, get("192.0.2."+strconv.Itoa(1+rng.IntN(2)), "/"), rs)
			if d.Refused() {
				t.Fatalf("refused: %+v", d)
			}
			var s Settlement
			plan.Settlement(&s)
			a, unreadable := randomAnswer(rng), 0
			for i := range plan.uses {
				units, bad := rules[i].owed(a)
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
			if got := limit.Capacity() - limit.room(&slot); got != want {
				t.Fatalf("%s holds %d, want %d, of %+v", key, got, want, rules)
			}
		}
	}
}
