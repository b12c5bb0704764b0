// SPDX-License-Identifier: Apache-2.0

package core

// Narrowest returns the check that is the first to refuse when many requests like this one come at once: of those that can
// refuse, the one that lets the fewest pass; of equals the first. alike says that a refusal by a limit holds for other requests
// that cost as much and have the same counter.
//
// It is -1 if none can refuse, and where such requests must not wait for each other: under a throttle rule each has its own turn,
// and of a rule with shards each may have another counter.
func (p *Plan) Narrowest() (check int, alike bool) {
	if p.refusal != refusalNone {
		return -1, false
	}
	for i := range p.uses {
		if r := p.uses[i].rule; p.uses[i].checks[0] != p.uses[i].checks[1] && (r.after.throttle != nil || r.sharded) {
			return -1, false
		}
	}
	check, alike = -1, true
	fewest := int64(0)
	for i := range p.checks {
		c := &p.checks[i]
		alike = alike && c.Penalty == nil && c.Guard == 0 // each refusal is a violation that the store records
		if c.Penalty != nil || c.Shadow || c.Op != OpTake || c.Cost == 0 {
			continue
		}
		if passing := c.Limit.Capacity() / c.Cost; check < 0 || passing < fewest {
			check, fewest = i, passing
		}
	}
	return check, alike
}
