// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// penaltyMin is the lower bound of a penalty's Window and Max in a policy, because Retry-After
// counts in seconds.
const penaltyMin = counter.Second

// checkPenalty checks the policy's penalty, which may be nil.
func (v *Verifier) checkPenalty(p *counter.Penalty) {
	if p == nil {
		return
	}
	const spans = "write 1s to 366d"
	if p.Window < penaltyMin || p.Window > counter.PenaltyMax {
		v.problem("penalty.window", p.Window.String(), "is out of bounds", spans)
	}
	if p.Threshold < 1 || p.Threshold > counter.ViolationsMax {
		v.problem("penalty.threshold", strconv.FormatInt(p.Threshold, 10), "is out of bounds",
			fmt.Sprintf("write 1 to %d, which is how many violations are remembered", counter.ViolationsMax))
	}
	if p.Max != 0 && (p.Max < penaltyMin || p.Max > counter.PenaltyMax) {
		v.problem("penalty.max", p.Max.String(), "is out of bounds", spans+"; left out it is the window")
	}
	switch n := len(p.Multipliers); {
	case n == 0:
		v.problem("penalty.multipliers", "", "are missing", "write one or more, for example [1, 2, 4, 8]")
	case n > counter.MultipliersMax:
		v.problem("penalty.multipliers", strconv.Itoa(n), fmt.Sprintf("are more than %d", counter.MultipliersMax),
			"leave some out: the last one holds for all further violations")
		return
	}
	for i, m := range p.Multipliers {
		if m < 1 || m > counter.MultiplierMax {
			v.problem(fmt.Sprintf("penalty.multipliers[%d]", i), strconv.FormatInt(m, 10), "is out of bounds",
				fmt.Sprintf("write 1 to %d", counter.MultiplierMax))
		}
	}
	if len(v.policy.Rules) > 0 && !v.anyViolates() { // a policy without rules is reported as another problem
		v.problem("penalty", "", "has no effect: no rule has action: reject and counts each client, user or API key apart",
			"add such a rule, or leave it out")
	}
}

// anyViolates reports whether a denial by one of the rules can be a violation.
func (v *Verifier) anyViolates() bool {
	for i := range v.policy.Rules {
		r := &v.policy.Rules[i]
		if r.Disabled || r.Action != policy.ActionReject || r.PerNone {
			continue
		}
		if len(r.Per) == 0 {
			return true
		}
		for _, d := range r.Per {
			if d.Kind == policy.PerClient || d.Kind == policy.PerUser || d.Kind == policy.PerAPIKey {
				return true
			}
		}
	}
	return false
}
