// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

func TestLeasable(t *testing.T) {
	for text, want := range map[string]bool{
		"10/1m": true, "10/1s": true, "10/999ms": false, "10/1m fixed_window": true, "10/500ms fixed_window": false,
		"10/1s burst 20": true, "10/100ms burst 20": false, "10/1m sliding_log": false, "10/day": true, "10/month": true,
	} {
		l := limittest.Parse(t, text)
		if got := l.Leasable(); got != want {
			t.Errorf("%s can be leased: %v, want %v", text, got, want)
		}
	}
	if new(counter.Limit).Leasable() {
		t.Error("the zero limit can be leased")
	}
}

// TestPlanSaysWhatMayBeLeased: the rule's lease field takes precedence over the policy's. Under a
// rule that permits leases, each limit may be leased if its window and algorithm permit this.
func TestPlanSaysWhatMayBeLeased(t *testing.T) {
	for _, c := range []struct {
		policy, rule policy.Lease
		action       policy.Action
		want         bool
	}{
		{policy.LeaseInherit, policy.LeaseInherit, policy.ActionReject, false}, {policy.LeaseAuto, policy.LeaseInherit, policy.ActionReject, true},
		{policy.LeaseAuto, policy.LeaseOff, policy.ActionReject, false}, {policy.LeaseOff, policy.LeaseAuto, policy.ActionReject, true},
		{policy.LeaseInherit, policy.LeaseAuto, policy.ActionThrottle, true}, {policy.LeaseAuto, policy.LeaseAuto, policy.ActionLogOnly, false},
	} {
		rule := policy.Rule{Name: "a", Lease: c.rule, Action: c.action, Limits: limittest.All(t, "9/1m", "9/1h sliding_log", "9/day"),
			Tiers: map[string]policy.LimitSet{"gold": {Limits: limittest.All(t, "90/1m")}}}
		if c.action == policy.ActionThrottle {
			rule.Throttle = &policy.Throttle{MaxDelay: counter.Second, MaxWaiting: 1}
		}
		rs, err := Compile(policy.Policy{Lease: c.policy, Rules: []policy.Rule{rule},
			Tier: []policy.Source{{Kind: policy.SourceHeader, Name: "X-Tier", Unverified: true}}})
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

func TestVerifyRejectsUnknownLeases(t *testing.T) {
	p := policy.Policy{Lease: policy.LeaseAuto + 1, Rules: []policy.Rule{{Name: "a", Limits: limittest.All(t, "1/1m"), Lease: policy.LeaseAuto + 1},
		{Name: "b", Action: policy.ActionBlock, Lease: policy.LeaseOff}}}
	_, err := Compile(p)
	problems, _ := err.(policy.Problems)
	var paths []string
	for _, problem := range problems {
		paths = append(paths, problem.Path)
	}
	if want := []string{"lease", "rules[0].lease", "rules[1].lease"}; len(paths) != 3 || paths[0] != want[0] ||
		paths[1] != want[1] || paths[2] != want[2] {
		t.Errorf("problems at %q, want %q", paths, want)
	}
}
