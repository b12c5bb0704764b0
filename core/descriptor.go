// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Descriptor is one of several descriptors of one request, as in Envoy's rate limit protocol. Each
// descriptor is identified, matched and counted separately. The request is admitted if all of them
// pass.
type Descriptor struct {
	Ruleset    *Ruleset
	Attributes policy.Attributes
	// Hits multiplies the cost of each rule. If Hits is 0, nothing is charged, but the request is
	// denied if no unit is left.
	Hits int64
	// Negative means that the hits are refunded instead of charged, and that nothing is denied: see
	// [Plan.Reports].
	Negative bool
	// Past says whether the hits have already happened. Such hits are charged even if they exceed
	// the limit: see [Plan.Reports].
	Past Past

	parts  [2]int32 // the half-open range of its parts in the plan
	exempt bool     // at least one rule does not limit it
	// deniedAlways reports whether the descriptor denies the request, whatever the store answers.
	deniedAlways bool
	// decides reports whether its limits with quota are those that deny: see [Plan.TryNextQuota].
	decides bool
}

// Past says whether the hits of a descriptor have already happened.
type Past uint8

// The zero value means that the hits belong to the request that is decided.
const (
	PastNo Past = iota
	PastMaybe
	PastYes
)

// part is a check that a descriptor needs. Several descriptors may need the same check.
type part struct {
	check int32
	cost  int64 // the descriptor's hits times the rule's cost
}

// AddDescriptors adds one request with several descriptors to a plan that was reset. Add must not
// be called on the same plan. A rule that replaces others does so for all descriptors. If several
// descriptors use the same counter, it is charged only once, with the highest of their costs,
// because they describe one request. After the plan's buffers have grown, AddDescriptors does not
// allocate.
func (p *Plan) AddDescriptors(ds []Descriptor) {
	p.replaced, p.parts = p.replaced[:0], p.parts[:0]
	for i := range ds {
		d := &ds[i]
		d.parts, d.exempt, d.deniedAlways, d.decides = [2]int32{}, false, false, false
		if d.Ruleset.replaces {
			p.who.Request.Read(d.Attributes)
			p.findReplaced(d.Ruleset)
		}
	}
	for i := range ds {
		d := &ds[i]
		uses, checks, before := len(p.uses), len(p.checks), p.denial
		p.who.Request.Read(d.Attributes)
		p.denial = denialNone
		p.addRuleset(d.Ruleset)
		d.deniedAlways = p.denial != denialNone
		if p.denial = max(p.denial, before); p.denial == denialBlocked {
			return
		}
		p.divide(d, uses, checks)
	}
	if p.denial == denialNone {
		p.offerQuotas(ds)
	}
}

// findReplaced appends to p.replaced the rules that the rules of a descriptor replace.
func (p *Plan) findReplaced(rs *Ruleset) {
	looked := len(p.credentials)
	if rs.disabled || p.identify(rs) {
		return
	}
	p.credentials = p.credentials[:looked] // addRuleset will verify these credentials again
	p.clientPart = p.identityPart(&p.who.Identity)
	p.matchRules(rs)
	p.chooseWinners(rs)
}

// Plan.matchRules sets p.matched to the rules that match the request.
func (p *Plan) matchRules(rs *Ruleset) {
	p.matched = rs.matcher.AppendMatches(p.matched[:0], &p.who.Request)
	for i, condition := range p.matched {
		p.matched[i] = rs.enabled[condition]
	}
}

// Plan.divide assigns to the descriptor the checks that were just added for it. The arguments uses
// and checks are the indexes at which the descriptor's uses and checks begin. Plan.divide drops
// checks that another descriptor already has.
func (p *Plan) divide(d *Descriptor, uses, checks int) {
	d.parts[0] = int32(len(p.parts))
	used, asked := uses, checks // the numbers of uses and checks that are kept
	for i := uses; i < len(p.uses); i++ {
		u := p.uses[i]
		d.exempt = d.exempt || u.excused || u.unlimited
		first := asked
		for c := u.checks[0]; c < u.checks[1]; c++ {
			if p.keepOrMerge(d, int(c), checks, asked) {
				p.asked[asked].use = int32(used)
				asked++
			}
		}
		if u.checks[0] < u.checks[1] && first == asked {
			continue // other descriptors already have all checks of this use
		}
		u.checks = [2]int32{int32(first), int32(asked)}
		p.uses[used], p.outcomes[used] = u, p.outcomes[i]
		used++
	}
	p.uses, p.outcomes = p.uses[:used], p.outcomes[:used]
	p.checks, p.results, p.asked = p.checks[:asked], p.results[:asked], p.asked[:asked]
	d.parts[1] = int32(len(p.parts))
}

// keepOrMerge merges a check into the check of p.checks[:before] that has the same key, and returns
// false. If no check there has that key, keepOrMerge moves the check to the index given by the last
// argument and returns true.
func (p *Plan) keepOrMerge(d *Descriptor, check, before, to int) bool {
	c := &p.checks[check]
	if c.Penalty == nil {
		cost := d.multiplyCost(c)
		for i := range before {
			if earlier := &p.checks[i]; bytes.Equal(earlier.Key, c.Key) {
				earlier.Include(c)
				p.tightenLimit(i, check)
				p.parts = append(p.parts, part{check: int32(i), cost: cost})
				return false
			}
		}
		p.parts = append(p.parts, part{check: int32(to), cost: cost})
	}
	p.checks[to], p.asked[to] = *c, p.asked[check]
	return true
}

// multiplyCost multiplies a check's cost by the descriptor's hits, and returns the product.
func (d *Descriptor) multiplyCost(c *counter.Check) (cost int64) {
	if d.Hits > 0 {
		cost = counter.CountMax + 1 // more than any limit allows
		if d.Hits <= counter.CountMax/c.Cost {
			cost = d.Hits * c.Cost
		}
	}
	switch {
	case d.Negative:
		c.Cost = 0
	case cost == 0:
		c.Op, c.Cost, c.Min, c.Max = counter.OpUpTo, 0, 1, 0
	default:
		c.Cost = cost
	}
	return cost
}

// tightenLimit gives a check the limit of another check of the same counter if that limit is
// stricter. Descriptors can carry their own limits, so two limits for one counter can differ; the
// stricter one applies.
func (p *Plan) tightenLimit(check, other int) {
	kept, l := p.checks[check].Limit, p.checks[other].Limit
	if l.Count() < kept.Count() || l.Count() == kept.Count() && l.Capacity() < kept.Capacity() {
		p.checks[check].Limit, p.checks[check].UnshardedLimit = l, p.checks[other].UnshardedLimit
		p.checks[check].WholeLimit = p.checks[other].WholeLimit
		p.asked[check].limit = p.asked[other].limit
	}
}

// Reports appends the checks that must be sent after the store has answered. These checks refund
// negative hits. If the request was denied, they also charge the hits that have already happened.
// If nothing is appended, no call is needed. None of these checks can be denied.
//
// Hits that may have happened are charged only to counters that lack room for them. If the request
// was denied before it used anything, it so uses up no limit that has room for its hits, such as a
// limit that all clients share.
//
// Negative hits have no receipt, so they are refunded to the store's current window, up to the
// units charged there. A sliding log stores each charge under its receipt, so it cannot be refunded
// this way.
func (p *Plan) Reports(dst []counter.Check, ds []Descriptor, denied bool) []counter.Check {
	first := len(dst)
	for i := range ds {
		d := &ds[i]
		if !d.Negative && !denied {
			continue
		}
		for _, part := range p.parts[d.parts[0]:d.parts[1]] {
			asked, result := &p.checks[part.check], &p.results[part.check]
			c := counter.Check{Key: asked.Key, ScopeLen: asked.ScopeLen, Limit: asked.Limit, Bounds: asked.Bounds,
				OnError: asked.OnError, Source: asked.Source, Cost: part.cost}
			switch {
			case d.Negative:
				c.Op, c.Receipt = counter.OpRefund, asked.Limit.ReceiptAt(result.At, asked.Bounds)
			case result.Granted == 0 && (d.Past == PastYes || d.Past == PastMaybe && result.Denied):
				c.Op = counter.OpForce
			}
			if c.Cost > 0 && (c.Op == counter.OpForce || c.Op == counter.OpRefund && c.Receipt > 0) {
				dst = appendReport(dst, first, c)
			}
		}
	}
	return dst
}

// appendReport appends a check unless dst[first:] has one for the same counter. If there are two
// checks for one counter, the check with the higher cost is kept. Of a charge and a refund, the
// charge is kept.
func appendReport(dst []counter.Check, first int, c counter.Check) []counter.Check {
	for i := first; i < len(dst); i++ {
		if !bytes.Equal(dst[i].Key, c.Key) {
			continue
		}
		if c.Op == dst[i].Op && c.Cost > dst[i].Cost || c.Op == counter.OpForce && dst[i].Op == counter.OpRefund {
			dst[i] = c
		}
		return dst
	}
	return append(dst, c)
}

// DescriptorStatus is the result for one descriptor. The zero value means that no limit applies to
// it.
type DescriptorStatus struct {
	// Denied reports whether the request is denied for this descriptor. A quota without room counts
	// as a denial even if another descriptor has a quota with room. A descriptor that is not Denied
	// would have passed alone, but is not charged if the request is denied.
	Denied    bool
	Unlimited bool // because of action allow, a tier without limits, or an exempt client
	// Policy, Limit, Remaining and Reset describe one limit of the descriptor: the one with the
	// longest wait if the descriptor is denied, otherwise the tightest. Limit is nil if no limit is
	// shown to clients.
	Policy    string
	Limit     *counter.Limit
	Remaining int64
	Reset     counter.Micros // as in [counter.Result]
}

// Status returns the result for a descriptor, after Decide.
func (p *Plan) Status(d *Descriptor) DescriptorStatus {
	if p.denial != denialNone { // the store was not called
		return DescriptorStatus{Denied: d.deniedAlways}
	}
	s := DescriptorStatus{Denied: p.inPenalty(), Unlimited: d.exempt}
	shown, denying := -1, false
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		i := int(part.check)
		denies := p.results[i].Denied && (!p.checks[i].Shadow || p.isQuota(i))
		s.Denied = s.Denied || denies
		if !p.showsCheck(i, policy.HeadersX|policy.HeadersIETF|policy.HeadersNone) || p.results[i].Local || denying && !denies {
			continue
		}
		if shown < 0 || denies && !denying || p.tighter(i, shown, denies) {
			shown, denying = i, denies
		}
	}
	if shown >= 0 {
		l, result := p.asked[shown].limit, &p.results[shown]
		s.Policy, s.Limit, s.Remaining, s.Reset = l.text.Name, l.wholeLimit(), p.Remaining(shown), result.Reset
	}
	return s
}

// Plan.tighter reports whether one check is tighter than another. If deny is true, the tighter one
// has the longer wait. If deny is false, the tighter one allows fewer further requests.
func (p *Plan) tighter(one, other int, deny bool) bool {
	if deny {
		return p.results[one].Wait > p.results[other].Wait
	}
	return p.Remaining(one)/max(1, p.checks[one].Cost) < p.Remaining(other)/max(1, p.checks[other].Cost)
}
