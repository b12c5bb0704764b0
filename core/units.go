// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/counter"

// Units returns the units that the rule of an outcome charges the request, or would charge if it
// had a limit for the client. The argument outcome is an index of Outcomes. A part of the policy
// that is not a rule charges nothing. Units that a front leases in addition are not included.
func (p *Plan) Units(outcome int) int64 {
	u := &p.uses[outcome]
	if u.rule == &noRule {
		return 0
	}
	if first := u.checks[0]; first < u.checks[1] && p.checks[first].Op != counter.OpUpTo {
		return p.checks[first].Cost
	}
	return u.rule.cost(&p.who.Request)
}

// Corrections calls yield with the difference for each rule whose final charge differs from the
// reserved units. Call it before Checks.
func (s *Settlement) Corrections(a Answer, yield func(rs *Ruleset, rule int, units int64)) {
	for i := range s.rules {
		r := &s.rules[i]
		if r.charges[0] == r.charges[1] {
			continue // filled in by Expect: nothing is charged yet
		}
		reserved := s.charges[r.charges[0]].granted
		if cost, _ := r.after.finalCharge(a, reserved); cost != reserved {
			yield(r.ruleset, int(r.index), cost-reserved)
		}
	}
}
