// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"testing"
)

func TestLeasable(t *testing.T) {
	for text, want := range map[string]bool{
		"10/1m": true, "10/1s": true, "10/999ms": false, "10/1m fixed_window": true, "10/500ms fixed_window": false,
		"10/1s burst 20": true, "10/100ms burst 20": false, "10/1m sliding_log": false, "10/day": true, "10/month": true,
	} {
		l := mustLimit(t, text)
		if got := l.Leasable(); got != want {
			t.Errorf("%s can be leased: %v, want %v", text, got, want)
		}
	}
	if new(Limit).Leasable() {
		t.Error("the zero limit can be leased")
	}
}

// TestPlanSaysWhatMayBeLeased: the rule's word goes before the policy's, and of a rule's limits those that can be.
func TestPlanSaysWhatMayBeLeased(t *testing.T) {
	for _, c := range []struct {
		policy, rule Lease
		action       Action
		want         bool
	}{
		{LeaseInherit, LeaseInherit, ActionReject, false}, {LeaseAuto, LeaseInherit, ActionReject, true},
		{LeaseAuto, LeaseOff, ActionReject, false}, {LeaseOff, LeaseAuto, ActionReject, true},
		{LeaseInherit, LeaseAuto, ActionThrottle, true}, {LeaseAuto, LeaseAuto, ActionLogOnly, false},
	} {
		rule := Rule{Name: "a", Lease: c.rule, Action: c.action, Limits: limits(t, "9/1m", "9/1h sliding_log", "9/day"),
			Tiers: map[string]LimitSet{"gold": {Limits: limits(t, "90/1m")}}}
		if c.action == ActionThrottle {
			rule.Throttle = &Throttle{MaxDelay: Second, MaxWaiting: 1}
		}
		rs, err := Compile(Policy{Lease: c.policy, Rules: []Rule{rule},
			Tier: []Source{{Kind: SourceHeader, Name: "X-Tier", Unverified: true}}})
		if err != nil {
			t.Fatal(err)
		}
		for tier, want := range map[string][]bool{"": {c.want, false, c.want}, "gold": {c.want}} {
			var p Plan
			p.Reset()
			p.Add(rs, &client{path: "/", header: map[string]string{"X-Tier": tier}})
			var got []bool
			for _, check := range p.Checks() {
				got = append(got, check.Lease)
			}
			if !slices.Equal(got, want) {
				t.Errorf("policy %d, rule %d, action %d, tier %q: %v, want %v", c.policy, c.rule, c.action, tier, got, want)
			}
		}
	}
}

func TestVerifyRefusesUnknownLeases(t *testing.T) {
	p := Policy{Lease: LeaseAuto + 1, Rules: []Rule{{Name: "a", Limits: limits(t, "1/1m"), Lease: LeaseAuto + 1},
		{Name: "b", Action: ActionBlock, Lease: LeaseOff}}}
	_, err := Compile(p)
	problems, _ := err.(Problems)
	var paths []string
	for _, problem := range problems {
		paths = append(paths, problem.Path)
	}
	if want := []string{"lease", "rules[0].lease", "rules[1].lease"}; len(paths) != 3 || paths[0] != want[0] ||
		paths[1] != want[1] || paths[2] != want[2] {
		t.Errorf("problems at %q, want %q", paths, want)
	}
}
