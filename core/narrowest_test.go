// SPDX-License-Identifier: Apache-2.0

package core

import "testing"

// TestNarrowest: the limit that lets the fewest such requests through, of those that can refuse.
func TestNarrowest(t *testing.T) {
	for name, c := range map[string]struct {
		rules   []Rule
		penalty *Penalty
		check   int
		alike   bool
	}{
		"one":          {rules: []Rule{{Limits: limits(t, "9/1m")}}, alike: true},
		"by capacity":  {rules: []Rule{{Limits: limits(t, "9/1m", "5/1h")}}, check: 1, alike: true},
		"by cost":      {rules: []Rule{{Limits: limits(t, "9/1m")}, {Limits: limits(t, "40/1m"), Cost: []Cost{{N: 10}}}}, check: 1, alike: true},
		"log_only":     {rules: []Rule{{Limits: limits(t, "9/1m")}, {Limits: limits(t, "1/1m"), Action: ActionLogOnly}}, alike: true},
		"only logged":  {rules: []Rule{{Limits: limits(t, "1/1m"), Action: ActionLogOnly}}, check: -1, alike: true},
		"a penalty":    {rules: []Rule{{Limits: limits(t, "9/1m")}}, penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{1}}, check: 1},
		"a throttle":   {rules: []Rule{{Limits: limits(t, "9/1m"), Action: ActionThrottle, Throttle: &Throttle{MaxDelay: Second, MaxWaiting: 1}}}, check: -1},
		"shards":       {rules: []Rule{{Limits: limits(t, "90/1m"), Shards: 3}}, check: -1},
		"no limit":     {rules: []Rule{{Action: ActionAllow, Group: "g"}}, check: -1, alike: true},
		"refused here": {rules: []Rule{{Action: ActionBlock}}, check: -1},
	} {
		for i := range c.rules {
			c.rules[i].Name = string(rune('a' + i))
		}
		rs, err := Compile(Policy{Name: "n", Rules: c.rules, Penalty: c.penalty})
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
