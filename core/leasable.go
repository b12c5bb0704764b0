// SPDX-License-Identifier: Apache-2.0

package core

// Lease says whether units of a rule's limits may be taken from the store in advance, by a node that then decides without
// asking. It changes no limit: what is taken is charged first.
type Lease uint8

// The ways to lease.
const (
	LeaseInherit Lease = iota // the policy's; for a policy: off
	LeaseOff
	LeaseAuto // limits that are hot, as [Limit.Leasable] says which can be
)

// LeasableWindowMin is the shortest window of which units are leased. A node asks for what it needs in a fifth of a window
// at most: of a shorter one that is so little that asking costs as much as deciding.
const LeasableWindowMin = Second

// Leasable reports whether units of the limit may be leased. Those of a sliding log are not: each unit has its own instant
// there, which a unit in hand does not have yet.
func (l *Limit) Leasable() bool {
	return l.algorithm != 0 && l.algorithm != SlidingLog && (l.calendar != 0 || l.window >= LeasableWindowMin)
}

// Leasable reports whether units of a limit of the rule may be leased, where it says so. Those of a token bucket are not if
// the response settles what was charged: of what comes back of leases a bucket that is asked often restores too little.
func (r *Rule) Leasable(l *Limit) bool {
	return l.leasable(r.CostAfter != nil || len(r.CountIf)+len(r.RefundOn) > 0)
}

func (l *Limit) leasable(settles bool) bool {
	return l.Leasable() && !(settles && l.algorithm == TokenBucket)
}

// leases reports whether units of a rule's limits are leased, as far as they can be. A log_only rule refuses nothing, and
// what it would refuse is told by the store alone; and shards are another answer to the same question.
func leases(p *Policy, r *Rule) bool {
	lease := r.Lease
	if lease == LeaseInherit {
		lease = p.Lease
	}
	return lease == LeaseAuto && r.Shards == 0 && (r.Action == ActionReject || r.Action == ActionThrottle)
}

// Aside says what a front may make of the request without asking the store: refuse it, by what the store refused a moment
// ago, and admit it, from units in hand. It may not where the store must hear of each request: of one under a log_only or
// a throttle rule, or of a client with a record of violations; nor where whoever asks chooses the counter, of a rule with shards.
// And it admits none whose response settles what was charged.
func (p *Plan) Aside() (refuse, admit bool) {
	if p.refusal != refusalNone || len(p.checks) == 0 {
		return false, false
	}
	admit = true
	for i := range p.checks {
		c := &p.checks[i]
		if c.Shadow || c.Penalty != nil || c.Guard != 0 || c.Op != OpTake {
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
