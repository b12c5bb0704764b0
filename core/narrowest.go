// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/counter"

// Narrowest returns the check that would deny first if many requests like this one arrived at once:
// the one whose capacity admits the fewest requests, or the first of several. If the result alike
// is true, a denial also applies to other requests with the same cost and the same counters.
//
// The result check is -1 if no check can deny. It is also -1 if requests must not wait for each
// other: under a throttle rule, each request has its own delay, and under a rule with shards, it
// can have its own counter.
func (p *Plan) Narrowest() (check int, alike bool) {
	if p.denial != denialNone {
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
		// the store must see each denial that it records as a violation
		alike = alike && c.Penalty == nil && c.Guard == 0
		if c.Penalty != nil || c.Shadow || c.Op != counter.OpTake || c.Cost == 0 {
			continue
		}
		if passing := c.Limit.Capacity() / c.Cost; check < 0 || passing < fewest {
			check, fewest = i, passing
		}
	}
	return check, alike
}
