// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strings"
	"testing"
)

// TestCompileRefusesShards holds each mistake, with the place and what to do.
func TestCompileRefusesShards(t *testing.T) {
	twelve := limits(t, "12/1m")
	for _, c := range []struct {
		rule Rule
		says string
	}{
		{Rule{Shards: 1, Limits: twelve}, `rules[0].shards: "1": is out of bounds; write 2 to 64`},
		{Rule{Shards: -1, Limits: twelve}, `rules[0].shards: "-1": is out of bounds`},
		{Rule{Shards: 65, Limits: twelve}, `rules[0].shards: "65": is out of bounds`},
		{Rule{Shards: 4, Limits: twelve, Lease: LeaseAuto}, `rules[0].shards: "4": does not go with lease: auto`},
		{Rule{Shards: 4, Limits: twelve, Action: ActionThrottle, Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 1}},
			`rules[0].shards: "4": does not go with action: throttle`},
		{Rule{Shards: 4, Action: ActionBlock}, `rules[0].shards: does not go with action: block`},
		{Rule{Shards: 4}, `rules[0].limit: is missing`},
		{Rule{Shards: 5, Limits: twelve}, `rules[0].limit[0]: "12/1m": has a count of 12, which 5 shards cannot share alike; write a count of 10 or 15`},
		{Rule{Shards: 13, Limits: twelve}, `write a count of 13, or other shards`},
		{Rule{Shards: 4, Limits: limits(t, "12/1m", "12/1s burst 10")}, `rules[0].limit[1]: "12/1s burst 10": has a burst of 10, which 4 shards cannot share alike; write a burst of 8 or 12`},
		{Rule{Shards: 7, Limits: limits(t, "10000/1m sl")}, `write a count of 9996, or other shards`},
		{Rule{Shards: 4, Limits: twelve, Tiers: map[string]LimitSet{"gold": {Limits: limits(t, "30/1m")}}},
			`rules[0].tiers.gold[0]: "30/1m": has a count of 30`},
		{Rule{Shards: 4, Limits: twelve, Cost: []Cost{{N: 4}}},
			`rules[0].cost[0].n: "4": can never pass one of 4 shards of limit[0], 12/1m; lower it to 3, raise the limit, or take 3 shards at most`},
		{Rule{Shards: 4, Limits: twelve, Cost: []Cost{{N: 7}}}, `or take no shards`},
		{Rule{Shards: 4, Limits: twelve, Cost: []Cost{{N: 13}}}, `"13": can never pass limit[0], 12/1m; lower it to 12, or raise`},
		{Rule{Shards: 4, Limits: twelve, CostAfter: &CostAfter{Header: "X-Cost", Estimate: 4, Max: 3}}, `rules[0].cost_after.estimate: "4": can never pass one of`},
		{Rule{Shards: 4, Limits: twelve, CostAfter: &CostAfter{Header: "X-Cost", Estimate: 1}},
			`rules[0].cost_after.max: is missing: one of 4 shards holds 3; write 3 at most, raise the limit, or take fewer shards`},
		{Rule{Shards: 4, Limits: limits(t, "16/1m burst 40"), CostAfter: &CostAfter{Header: "X-Cost", Estimate: 1, Max: 5}},
			`rules[0].cost_after.max: "5": is more than one of 4 shards holds; write 4 at most`},
	} {
		c.rule.Name = "r"
		_, err := Compile(Policy{Name: "n", Tier: tierOf, Rules: []Rule{c.rule}})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
	for _, r := range []Rule{
		{Shards: 4, Limits: limits(t, "12/1m", "40/1s burst 8", "100/day", "8/1h sl")},
		{Shards: 64, Limits: limits(t, "64/1m"), Action: ActionLogOnly},
		{Shards: 2, Limits: twelve, Tiers: map[string]LimitSet{"gold": {Unlimited: true}}, Cost: []Cost{{N: 6}}},
		{Shards: 4, Limits: twelve, CostAfter: &CostAfter{Header: "X-Cost", Estimate: 3, Max: 3}},
		{Shards: 4, Limits: twelve, Lease: LeaseOff},
	} {
		r.Name = "r"
		rs, err := Compile(Policy{Name: "n", Tier: tierOf, Lease: LeaseAuto, Rules: []Rule{r}})
		if err != nil {
			t.Errorf("%+v: %v", r, err)
			continue
		}
		plan := new(Plan)
		plan.Add(rs, get("192.0.2.1", "/"))
		if refuse, admit := plan.Aside(); refuse || admit || plan.Checks()[0].Lease {
			t.Errorf("%+v: aside %v %v, leased %v", r, refuse, admit, plan.Checks()[0].Lease)
		}
	}
}
