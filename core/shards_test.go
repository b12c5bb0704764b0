// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// TestCompileRejectsShards tests that each mistake is reported with its place and a remedy.
func TestCompileRejectsShards(t *testing.T) {
	twelve := limittest.All(t, "12/1m")
	for _, c := range []struct {
		rule policy.Rule
		says string
	}{
		{policy.Rule{Shards: 1, Limits: twelve}, `rules[0].shards: "1": is out of bounds; write 2 to 64`},
		{policy.Rule{Shards: -1, Limits: twelve}, `rules[0].shards: "-1": is out of bounds`},
		{policy.Rule{Shards: 65, Limits: twelve}, `rules[0].shards: "65": is out of bounds`},
		{policy.Rule{Shards: 4, Limits: twelve, Lease: policy.LeaseAuto}, `rules[0].shards: "4": does not go with lease: auto`},
		{policy.Rule{Shards: 4, Limits: twelve, Action: policy.ActionThrottle, Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 1}},
			`rules[0].shards: "4": does not go with action: throttle`},
		{policy.Rule{Shards: 4, Action: policy.ActionBlock}, `rules[0].shards: does not go with action: block`},
		{policy.Rule{Shards: 4}, `rules[0].limit: is missing`},
		{policy.Rule{Shards: 5, Limits: twelve}, `rules[0].limit[0]: "12/1m": has a count of 12, which 5 shards cannot divide evenly; write a count of 10 or 15`},
		{policy.Rule{Shards: 13, Limits: twelve}, `write a count of 13, or other shards`},
		{policy.Rule{Shards: 4, Limits: limittest.All(t, "12/1m", "12/1s burst 10")}, `rules[0].limit[1]: "12/1s burst 10": has a burst of 10, which 4 shards cannot divide evenly; write a burst of 8 or 12`},
		{policy.Rule{Shards: 7, Limits: limittest.All(t, "10000/1m sl")}, `write a count of 9996, or other shards`},
		{policy.Rule{Shards: 4, Limits: twelve, Tiers: map[string]policy.LimitSet{"gold": {Limits: limittest.All(t, "30/1m")}}},
			`rules[0].tiers.gold[0]: "30/1m": has a count of 30`},
		{policy.Rule{Shards: 4, Limits: twelve, Cost: []policy.Cost{{N: 4}}},
			`rules[0].cost[0].n: "4": can never pass one of 4 shards of limit[0], 12/1m; lower it to 3, raise the limit, or take 3 shards at most`},
		{policy.Rule{Shards: 4, Limits: twelve, Cost: []policy.Cost{{N: 7}}}, `or take no shards`},
		{policy.Rule{Shards: 4, Limits: twelve, Cost: []policy.Cost{{N: 13}}}, `"13": can never pass limit[0], 12/1m; lower it to 12, or raise`},
		{policy.Rule{Shards: 4, Limits: twelve, CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 4, Max: 3}}, `rules[0].cost_after.estimate: "4": can never pass one of`},
		{policy.Rule{Shards: 4, Limits: twelve, CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 1}},
			`rules[0].cost_after.max: is missing: one of 4 shards holds 3; write 3 at most, raise the limit, or take fewer shards`},
		{policy.Rule{Shards: 4, Limits: limittest.All(t, "16/1m burst 40"), CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 1, Max: 5}},
			`rules[0].cost_after.max: "5": is more than one of 4 shards holds; write 4 at most`},
	} {
		c.rule.Name = "r"
		_, err := Compile(policy.Policy{Name: "n", Tier: tierOf, Rules: []policy.Rule{c.rule}})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	for _, r := range []policy.Rule{
		{Shards: 4, Limits: limittest.All(t, "12/1m", "40/1s burst 8", "100/day", "8/1h sl")},
		{Shards: 64, Limits: limittest.All(t, "64/1m"), Action: policy.ActionLogOnly},
		{Shards: 2, Limits: twelve, Tiers: map[string]policy.LimitSet{"gold": {Unlimited: true}}, Cost: []policy.Cost{{N: 6}}},
		{Shards: 4, Limits: twelve, CostAfter: &policy.CostAfter{Header: "X-Cost", Estimate: 3, Max: 3}},
		{Shards: 4, Limits: twelve, Lease: policy.LeaseOff},
	} {
		r.Name = "r"
		rs, err := Compile(policy.Policy{Name: "n", Tier: tierOf, Lease: policy.LeaseAuto, Rules: []policy.Rule{r}})
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			continue
		}
		plan := new(Plan)
		plan.Add(rs, get("192.0.2.1", "/"))
		if deny, admit := plan.LocalDecision(); deny || admit || plan.Checks()[0].Lease {
			t.Errorf("%+v: aside %v %v, leased %v", r, deny, admit, plan.Checks()[0].Lease)
		}
	}
}
