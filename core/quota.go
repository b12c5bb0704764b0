// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/policy"

// If several descriptors of a request have limits with quota, the request is admitted if one of
// them has room; the others then charge nothing and deny nothing. If no limit with quota has room,
// the request is denied, and the charges to the request's other limits are refunded (see
// [Plan.Reports]). If only one descriptor has a limit with quota, that limit denies like any other:
// either all limits are charged or none.

// shadowQuotas makes limits with quota shadow checks if several descriptors have one.
func (p *Plan) shadowQuotas(ds []Descriptor) {
	offers := 0
	for i := range ds {
		if p.hasQuota(&ds[i]) {
			offers++
		}
	}
	if offers < 2 {
		return
	}
	for i := range p.checks {
		c := &p.checks[i]
		c.Refundable = c.Penalty == nil
		c.Shadow = c.Shadow || p.ruleOf(i).quota
	}
}

// hasQuota reports whether a descriptor has a limit with quota.
func (p *Plan) hasQuota(d *Descriptor) bool {
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		if p.ruleOf(int(part.check)).quota {
			return true
		}
	}
	return false
}

// overQuota reports whether a limit with quota denies the descriptor. A limit of a log_only rule
// never denies.
func (p *Plan) overQuota(d *Descriptor) bool {
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		if r := p.ruleOf(int(part.check)); r.quota && r.action != policy.ActionLogOnly && p.results[part.check].Denied {
			return true
		}
	}
	return false
}

// DecideDescriptors is Decide for a plan that AddDescriptors filled.
func (p *Plan) DecideDescriptors(ds []Descriptor) Decision {
	if p.denial != denialNone || !p.quotasExhausted(ds) {
		return p.Decide()
	}
	for i := range p.checks {
		if r := p.ruleOf(i); r.quota && r.action != policy.ActionLogOnly {
			p.checks[i].Shadow = false
		}
		if p.isRefunded(int32(i), ds) {
			p.results[i].Remaining += p.results[i].Granted
		}
	}
	return p.Decide()
}

// quotasExhausted reports whether there are descriptors with quota and none of them has room.
func (p *Plan) quotasExhausted(ds []Descriptor) bool {
	offers := 0
	for i := range ds {
		if !p.hasQuota(&ds[i]) {
			continue
		}
		offers++
		if !p.overQuota(&ds[i]) {
			return false
		}
	}
	return offers > 0
}

// isRefunded reports whether the charge of a check is refunded when the request is denied. The
// charge is not refunded if one of the descriptors reports past hits for that counter.
func (p *Plan) isRefunded(check int32, ds []Descriptor) bool {
	if p.results[check].Granted == 0 {
		return false
	}
	for i := range ds {
		if !ds[i].Reported {
			continue
		}
		for _, part := range p.parts[ds[i].parts[0]:ds[i].parts[1]] {
			if part.check == check {
				return false
			}
		}
	}
	return true
}
