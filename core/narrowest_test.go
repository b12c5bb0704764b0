// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// TestNarrowest: of the limits that can deny, Narrowest returns the one that admits the fewest such
// requests.
func TestNarrowest(t *testing.T) {
	for name, c := range map[string]struct {
		rules   []policy.Rule
		penalty *counter.Penalty
		check   int
		alike   bool
	}{
		"one":          {rules: []policy.Rule{{Limits: limittest.All(t, "9/1m")}}, alike: true},
		"by capacity":  {rules: []policy.Rule{{Limits: limittest.All(t, "9/1m", "5/1h")}}, check: 1, alike: true},
		"by cost":      {rules: []policy.Rule{{Limits: limittest.All(t, "9/1m")}, {Limits: limittest.All(t, "40/1m"), Cost: []policy.Cost{{N: 10}}}}, check: 1, alike: true},
		"log_only":     {rules: []policy.Rule{{Limits: limittest.All(t, "9/1m")}, {Limits: limittest.All(t, "1/1m"), Action: policy.ActionLogOnly}}, alike: true},
		"only logged":  {rules: []policy.Rule{{Limits: limittest.All(t, "1/1m"), Action: policy.ActionLogOnly}}, check: -1, alike: true},
		"a penalty":    {rules: []policy.Rule{{Limits: limittest.All(t, "9/1m")}}, penalty: &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1}}, check: 1},
		"a throttle":   {rules: []policy.Rule{{Limits: limittest.All(t, "9/1m"), Action: policy.ActionThrottle, Throttle: &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 1}}}, check: -1},
		"shards":       {rules: []policy.Rule{{Limits: limittest.All(t, "90/1m"), Shards: 3}}, check: -1},
		"no limit":     {rules: []policy.Rule{{Action: policy.ActionAllow, Group: "g"}}, check: -1, alike: true},
		"refused here": {rules: []policy.Rule{{Action: policy.ActionBlock}}, check: -1},
	} {
		for i := range c.rules {
			c.rules[i].Name = string(rune('a' + i))
		}
		rs, err := Compile(policy.Policy{Name: "n", Rules: c.rules, Penalty: c.penalty})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var p Plan
		p.Add(rs, get("192.0.2.1", "/"))
		if check, alike := p.Narrowest(); check != c.check || alike != c.alike {
			t.Errorf("%s: check %d, alike %v", name, check, alike)
		}
	}
}
