// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// mayLease reports whether units of a rule's limits may be leased. Units of a log_only rule are not
// leased, because only the store can determine what the rule would deny. Units of a rule with
// shards are not leased either, because shards serve the same purpose.
func mayLease(p *policy.Policy, r *policy.Rule) bool {
	lease := r.Lease
	if lease == policy.LeaseInherit {
		lease = p.Lease
	}
	return lease == policy.LeaseAuto && r.Shards == 0 && (r.Action == policy.ActionReject || r.Action == policy.ActionThrottle)
}

// LocalDecision reports what a front may decide without the store: whether it may deny the request
// because of a recent denial by the store, and whether it may admit the request from leased units.
// Both results are false where the store must see each request: under log_only and throttle rules,
// and for clients that might have a penalty. Both results are also false for rules with shards,
// where each request can have a different counter. A request whose response settles the charge is
// never admitted this way.
func (p *Plan) LocalDecision() (deny, admit bool) {
	if p.denial != denialNone || len(p.checks) == 0 {
		return false, false
	}
	admit = true
	for i := range p.checks {
		c := &p.checks[i]
		if c.Shadow || c.Penalty != nil || c.Guard != 0 || c.Op != counter.OpTake {
			return false, false
		}
		admit = admit && c.Lease && c.Cost > 0
	}
	for i := range p.uses {
		u := &p.uses[i]
		if u.checks[0] == u.checks[1] {
			continue
		}
		if u.rule.after.throttle != nil || u.rule.sharded {
			return false, false
		}
		admit = admit && !u.rule.after.settles
	}
	return true, admit
}
