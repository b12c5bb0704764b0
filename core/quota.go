// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/policy"

// If several descriptors of a request have limits with quota, the request is admitted if one of
// them has room; the others then charge nothing and deny nothing. The store does not know such a
// choice: either all limits of a call are charged or none. So in a call the quotas of one
// descriptor, the decider, deny like other limits, and those of the other descriptors are shadow
// checks. If only the decider denies the request, another descriptor becomes the decider, and the
// store is called again (see [Plan.TryNextQuota]). So a request that is denied has not charged
// anything, not even for a moment, and cannot cause denials of others. If only one descriptor has a
// limit with quota, that limit denies like any other.

// offerQuotas chooses a decider if several descriptors have limits with quota.
func (p *Plan) offerQuotas(ds []Descriptor) {
	offers, first := 0, -1
	for i := range ds {
		if !p.hasQuota(&ds[i]) {
			continue
		}
		offers++
		if first < 0 || p.mayDeny(&ds[first]) && !p.mayDeny(&ds[i]) {
			first = i
		}
	}
	if offers < 2 {
		return
	}
	for i := range p.checks {
		if c := &p.checks[i]; p.ruleOf(i).quota {
			// a denial is no violation, because another descriptor might have room
			c.Shadow, c.Lease, c.Guard, c.Violation = true, false, 0, 0
		}
	}
	p.decideBy(ds, first)
}

// decideBy makes the descriptor with the given index the decider.
func (p *Plan) decideBy(ds []Descriptor, at int) {
	p.shadowQuotas(true)
	for i := range ds {
		ds[i].decides = i == at
	}
	for _, part := range p.parts[ds[at].parts[0]:ds[at].parts[1]] {
		if p.isQuota(int(part.check)) {
			p.checks[part.check].Shadow = false
		}
	}
}

// shadowQuotas sets Shadow of all checks of limits with quota.
func (p *Plan) shadowQuotas(shadow bool) {
	for i := range p.checks {
		if p.isQuota(i) {
			p.checks[i].Shadow = shadow
		}
	}
}

// isQuota reports whether a check is of a limit with quota. A limit of a log_only rule never
// denies, and does not count.
func (p *Plan) isQuota(check int) bool {
	r := p.ruleOf(check)
	return r.quota && r.action != policy.ActionLogOnly
}

// hasQuota reports whether a descriptor has a limit with quota, even one of a log_only rule.
func (p *Plan) hasQuota(d *Descriptor) bool {
	return p.hasCheck(d, func(p *Plan, check int) bool { return p.ruleOf(check).quota })
}

// mayDeny reports whether a descriptor has a limit with quota that can deny.
func (p *Plan) mayDeny(d *Descriptor) bool { return p.hasCheck(d, (*Plan).isQuota) }

// overQuota reports whether a limit with quota denies the descriptor.
func (p *Plan) overQuota(d *Descriptor) bool {
	return p.hasCheck(d, func(p *Plan, check int) bool { return p.isQuota(check) && p.results[check].Denied })
}

// hasCheck reports whether one of the descriptor's checks is of the given kind.
func (p *Plan) hasCheck(d *Descriptor, is func(p *Plan, check int) bool) bool {
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		if is(p, int(part.check)) {
			return true
		}
	}
	return false
}

// decider returns the index of the descriptor whose limits with quota decide, or -1 if there are
// not several with quota.
func decider(ds []Descriptor) int {
	for i := range ds {
		if ds[i].decides {
			return i
		}
	}
	return -1
}

// QuotasLeft reports whether a denial by the quotas that decide is not final, because
// [Plan.TryNextQuota] might choose other quotas.
func (p *Plan) QuotasLeft(ds []Descriptor) bool {
	at := decider(ds)
	for i := at + 1; at >= 0 && i < len(ds); i++ {
		if p.hasQuota(&ds[i]) {
			return true
		}
	}
	return false
}

// TryNextQuota reports whether the store must be called again, with the same checks. This is so if
// the store has denied the request only because the quotas of the descriptor that decides lack
// room, and another descriptor has quotas with room, which then decide. In a call that was denied,
// nothing was charged. Each descriptor decides at most once.
func (p *Plan) TryNextQuota(ds []Descriptor) bool {
	at := decider(ds)
	if at < 0 || !p.overQuota(&ds[at]) || p.deniesBesides() {
		return false
	}
	for i := at + 1; i < len(ds); i++ {
		if p.hasQuota(&ds[i]) && !p.overQuota(&ds[i]) {
			p.decideBy(ds, i)
			return true
		}
	}
	return false
}

// deniesBesides reports whether a check that is not of a limit with quota denies the request.
func (p *Plan) deniesBesides() bool {
	for i := range p.checks {
		if p.results[i].Denied && !p.checks[i].Shadow && !p.isQuota(i) {
			return true
		}
	}
	return false
}

// DecideDescriptors is Decide for a plan that AddDescriptors filled. TryNextQuota must have
// returned false.
func (p *Plan) DecideDescriptors(ds []Descriptor) Decision {
	if at := decider(ds); at >= 0 && p.denial == denialNone {
		p.shadowQuotas(!p.quotasDeny(ds, at))
	}
	return p.Decide()
}

// quotasDeny reports whether the request is denied for lack of room in its quotas, perhaps among
// other reasons. Quotas with room at an earlier call than the last do not count.
func (p *Plan) quotasDeny(ds []Descriptor, at int) bool {
	if !p.overQuota(&ds[at]) {
		return false
	}
	if !p.deniesBesides() {
		return true
	}
	for i := range ds {
		if p.hasQuota(&ds[i]) && !p.overQuota(&ds[i]) {
			return false
		}
	}
	return true
}
