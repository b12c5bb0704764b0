// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/counter"

// Units returns the units that the rule of an outcome charges the request, or would charge if it had
// a limit for the client. outcome is an index of Outcomes. A part of the policy that is not a rule
// charges nothing. What a front leases in addition is not included.
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
