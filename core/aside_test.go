// SPDX-License-Identifier: Apache-2.0

package core

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAside: what the store must hear of is decided by nobody else.
func TestAside(t *testing.T) {
	one := limits(t, "9/1m")
	for name, c := range map[string]struct {
		rules         []Rule
		penalty       *Penalty
		refuse, admit bool
	}{
		"leased":           {rules: []Rule{{Lease: LeaseAuto, Limits: one}}, refuse: true, admit: true},
		"two leased":       {rules: []Rule{{Lease: LeaseAuto, Limits: limits(t, "9/1m", "9/1h")}}, refuse: true, admit: true},
		"one is not":       {rules: []Rule{{Lease: LeaseAuto, Limits: one}, {Limits: one}}, refuse: true},
		"one cannot be":    {rules: []Rule{{Lease: LeaseAuto, Limits: limits(t, "9/1m", "9/1h sliding_log")}}, refuse: true},
		"log_only besides": {rules: []Rule{{Lease: LeaseAuto, Limits: one}, {Action: ActionLogOnly, Limits: one}}},
		"throttled": {rules: []Rule{{Lease: LeaseAuto, Limits: one, Action: ActionThrottle,
			Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 1}}}},
		"refunds":   {rules: []Rule{{Lease: LeaseAuto, Limits: one, RefundOn: []Statuses{{500, 599}}}}, refuse: true},
		"a penalty": {rules: []Rule{{Lease: LeaseAuto, Limits: one}}, penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{1}}},
		"exempt":    {rules: []Rule{{Action: ActionAllow, Group: "g"}}},
		"unlimited": {rules: []Rule{{Lease: LeaseAuto, Limits: one, RefundOn: []Statuses{{500, 599}}, Match: Match{Path: []string{"/other"}}}}},
		"unlimited so": {rules: []Rule{{Lease: LeaseAuto, Limits: one}, {Limits: one, RefundOn: []Statuses{{500, 599}},
			Tiers: map[string]LimitSet{"gold": {Unlimited: true}}}}, refuse: true, admit: true},
	} {
		for i := range c.rules {
			c.rules[i].Name = string(rune('a' + i))
		}
		rs, err := Compile(Policy{Name: "n", Rules: c.rules, Penalty: c.penalty,
			Tier: []Source{{Kind: SourceHeader, Name: "X-Tier", Unverified: true}}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var p Plan
		request := get("192.0.2.1", "/")
		request.header = map[string]string{"X-Tier": "gold"}
		p.Add(rs, request)
		if refuse, admit := p.Aside(); refuse != c.refuse || admit != c.admit {
			t.Errorf("%s: refuse %v, admit %v", name, refuse, admit)
		}
	}
}

// TestCompactGiveBack: read as it was written, and nothing else is one.
func TestCompactGiveBack(t *testing.T) {
	fixed, calendar := mustLimit(t, "9/1m fw"), mustLimit(t, "9/day")
	for _, want := range []Check{
		{Key: []byte("rl1:n:r:{u}:60s:fw"), ScopeLen: 8, Limit: &fixed, Op: OpGiveBack, Cost: 7, Receipt: 3 * Minute, Age: Second},
		{Key: []byte("k"), Limit: &calendar, Op: OpGiveBack, Cost: 1, Bounds: &Bounds{1, 2, 3, 4}},
	} {
		data := AppendGiveBack([]byte("x"), &want)[1:]
		got, err := ReadGiveBack(data)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(Limit{})); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		for n := range data {
			if _, err := ReadGiveBack(data[:n]); err == nil {
				t.Errorf("the first %d bytes are one", n)
			}
		}
		if _, err := ReadGiveBack(append(data, 0)); err == nil {
			t.Error("more than one is one")
		}
		want.Cost = 0
		if _, err := ReadGiveBack(AppendGiveBack(nil, &want)); err == nil {
			t.Error("nothing is given back")
		}
	}
}
