// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// TestAside: a request that the store must record is never decided without the store.
func TestAside(t *testing.T) {
	one := limittest.All(t, "9/1m")
	for name, c := range map[string]struct {
		rules       []policy.Rule
		penalty     *counter.Penalty
		deny, admit bool
	}{
		"leased":           {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one}}, deny: true, admit: true},
		"two leased":       {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: limittest.All(t, "9/1m", "9/1h")}}, deny: true, admit: true},
		"one is not":       {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one}, {Limits: one}}, deny: true},
		"one cannot be":    {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: limittest.All(t, "9/1m", "9/1h sliding_log")}}, deny: true},
		"log_only besides": {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one}, {Action: policy.ActionLogOnly, Limits: one}}},
		"throttled": {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one, Action: policy.ActionThrottle,
			Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 1}}}},
		"refunds":   {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one, RefundOn: []policy.Statuses{{From: 500, To: 599}}}}, deny: true},
		"a penalty": {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one}}, penalty: &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1}}},
		"exempt":    {rules: []policy.Rule{{Action: policy.ActionAllow, Group: "g"}}},
		"unlimited": {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one, RefundOn: []policy.Statuses{{From: 500, To: 599}}, Match: policy.Match{Path: []string{"/other"}}}}},
		"unlimited so": {rules: []policy.Rule{{Lease: policy.LeaseAuto, Limits: one}, {Limits: one, RefundOn: []policy.Statuses{{From: 500, To: 599}},
			Tiers: map[string]policy.LimitSet{"gold": {Unlimited: true}}}}, deny: true, admit: true},
	} {
		for i := range c.rules {
			c.rules[i].Name = string(rune('a' + i))
		}
		rs, err := Compile(policy.Policy{Name: "n", Rules: c.rules, Penalty: c.penalty,
			Tier: []policy.Source{{Kind: policy.SourceHeader, Name: "X-Tier", Unverified: true}}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var p Plan
		request := get("192.0.2.1", "/")
		request.header = map[string]string{"X-Tier": "gold"}
		p.Add(rs, request)
		if deny, admit := p.LocalDecision(); deny != c.deny || admit != c.admit {
			t.Errorf("%s: deny %v, admit %v", name, deny, admit)
		}
	}
}

// TestCompactRefund: a refund survives a round trip through the compact form, and no other data is
// accepted as a refund.
func TestCompactRefund(t *testing.T) {
	fixed, calendar := limittest.Parse(t, "9/1m fw"), limittest.Parse(t, "9/day")
	for _, want := range []counter.Check{
		{Key: []byte("rl1:n:r:{u}:60s:fw"), ScopeLen: 8, Limit: &fixed, Op: counter.OpRefund, Cost: 7, Receipt: 3 * counter.Minute, Age: counter.Second},
		{Key: []byte("k"), Limit: &calendar, Op: counter.OpRefund, Cost: 1, Bounds: &counter.Bounds{1, 2, 3, 4}},
	} {
		data := compact.AppendRefund([]byte("x"), &want)[1:]
		got, err := compact.ReadRefund(data)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(counter.Limit{})); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		for n := range data {
			if _, err := compact.ReadRefund(data[:n]); err == nil {
				t.Errorf("the first %d bytes are one", n)
			}
		}
		if _, err := compact.ReadRefund(append(data, 0)); err == nil {
			t.Error("more than one is one")
		}
		want.Cost = 0
		if _, err := compact.ReadRefund(compact.AppendRefund(nil, &want)); err == nil {
			t.Error("nothing is given back")
		}
	}
}
