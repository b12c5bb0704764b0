// SPDX-License-Identifier: Apache-2.0

package core

import "bytes"

// Descriptor is one of several descriptions of one request, as Envoy's rate limit protocol has them: each is identified,
// matched and counted by itself, and the request goes on if all of them pass.
type Descriptor struct {
	Ruleset    *Ruleset
	Attributes Attributes
	// Hits is how many times the cost of each rule is charged. 0 charges nothing, and refuses the request if nothing is left.
	Hits int64
	// Negative gives that much back instead, and refuses nothing: see [Plan.Reports].
	Negative bool
	// Reported says that the hits have happened: they are charged even if they do not fit: see [Plan.Reports].
	Reported bool

	parts  [2]int32 // of the plan's: the first and the one after the last
	exempt bool     // a rule says that it has no limit
	// refused says that the request is refused for it whatever the store says.
	refused bool
}

// part is a check that a descriptor asks for, be it the first to ask or not.
type part struct {
	check int32
	cost  int64 // what the descriptor asks for, by its hits
}

// AddDescriptors adds one request of which there are several descriptions, to a plan that was reset; Add adds no other then.
// Where a rule replaces others, it does so whatever the descriptor. A counter that several descriptors meet is asked for
// once, for the most that one of them costs: they tell of one request. It does not allocate once the plan's buffers have
// grown.
func (p *Plan) AddDescriptors(ds []Descriptor) {
	p.replaced, p.parts = p.replaced[:0], p.parts[:0]
	for i := range ds {
		d := &ds[i]
		d.parts, d.exempt, d.refused = [2]int32{}, false, false
		if d.Ruleset.replaces {
			p.request.read(d.Attributes)
			p.findReplaced(d.Ruleset)
		}
	}
	for i := range ds {
		d := &ds[i]
		uses, checks, before := len(p.uses), len(p.checks), p.refusal
		p.request.read(d.Attributes)
		p.refusal = refusalNone
		p.add(d.Ruleset)
		d.refused = p.refusal != refusalNone
		if p.refusal = max(p.refusal, before); p.refusal == refusalBlocked {
			return
		}
		p.divide(d, uses, checks)
	}
	if p.refusal == refusalNone {
		p.offer(ds)
	}
}

// findReplaced finds out which rules those of a descriptor replace.
func (p *Plan) findReplaced(rs *Ruleset) {
	looked := len(p.credentials)
	if rs.disabled || p.identify(rs) {
		return
	}
	p.credentials = p.credentials[:looked] // they are looked at again
	p.clientPart = p.identityPart(&p.asking)
	p.match(rs)
	p.compete(rs)
}

// match leaves in p.matched the rules that the request is one for.
func (p *Plan) match(rs *Ruleset) {
	p.matched = rs.matcher.appendMatches(p.matched[:0], &p.request)
	for i, condition := range p.matched {
		p.matched[i] = rs.enabled[condition]
	}
}

// divide makes what was added last, from these uses and checks on, the descriptor's. What another one asks for already is
// left to that one.
func (p *Plan) divide(d *Descriptor, uses, checks int) {
	d.parts[0] = int32(len(p.parts))
	used, asked := uses, checks // what is kept ends here
	for i := uses; i < len(p.uses); i++ {
		u := p.uses[i]
		d.exempt = d.exempt || u.excused || u.unlimited
		first := asked
		for c := u.checks[0]; c < u.checks[1]; c++ {
			if p.keep(d, int(c), checks, asked) {
				p.asked[asked].use = int32(used)
				asked++
			}
		}
		if u.checks[0] < u.checks[1] && first == asked {
			continue // all of it was asked for before
		}
		u.checks = [2]int32{int32(first), int32(asked)}
		p.uses[used], p.outcomes[used] = u, p.outcomes[i]
		used++
	}
	p.uses, p.outcomes = p.uses[:used], p.outcomes[:used]
	p.checks, p.results, p.asked = p.checks[:asked], p.results[:asked], p.asked[:asked]
	d.parts[1] = int32(len(p.parts))
}

// keep moves a check to the place where it is kept, and says so; or leaves it to one of those before, which ask for other
// descriptors.
func (p *Plan) keep(d *Descriptor, check, before, to int) bool {
	c := &p.checks[check]
	if c.Penalty == nil {
		cost := d.charge(c)
		for i := range before {
			if earlier := &p.checks[i]; bytes.Equal(earlier.Key, c.Key) {
				earlier.include(c)
				p.tighten(i, check)
				p.parts = append(p.parts, part{check: int32(i), cost: cost})
				return false
			}
		}
		p.parts = append(p.parts, part{check: int32(to), cost: cost})
	}
	p.checks[to], p.asked[to] = *c, p.asked[check]
	return true
}

// charge makes a check ask for the descriptor's hits, and returns how many units they are.
func (d *Descriptor) charge(c *Check) (cost int64) {
	if d.Hits > 0 {
		cost = CountMax + 1 // more than any limit holds
		if d.Hits <= CountMax/c.Cost {
			cost = d.Hits * c.Cost
		}
	}
	switch {
	case d.Negative:
		c.Cost = 0
	case cost == 0:
		c.Op, c.Cost, c.Min, c.Max = OpUpTo, 0, 1, 0
	default:
		c.Cost = cost
	}
	return cost
}

// tighten makes a check one under the limit of another about the same counter, if that one lets less through: limits that
// requests bring may differ for one counter, and then the strictest holds.
func (p *Plan) tighten(check, other int) {
	kept, l := p.checks[check].Limit, p.checks[other].Limit
	if l.count < kept.count || l.count == kept.count && l.burst < kept.burst {
		p.checks[check].Limit, p.checks[check].Whole = l, p.checks[other].Whole
		p.asked[check].limit = p.asked[other].limit
	}
}

// include makes a check ask for no less than another about the same counter.
func (c *Check) include(other *Check) {
	if other.Cost > c.Cost || c.Cost == 0 && other.Op == OpUpTo {
		c.Op, c.Cost, c.Min, c.Max = other.Op, other.Cost, other.Min, other.Max
	}
}

// Reports appends what is to be asked of the store besides, once it has answered: negative hits given back, and, if the
// request was refused, the hits that have happened all the same, and those given back that were charged before it was
// known that no descriptor with quota has room. Without any, nothing need be asked; none of it is refused.
//
// Nobody has the receipts of what is given back, so it goes to the window that the store is in, and no further than to
// what was charged there. A sliding log keeps each charge by its receipt, so that to one of those nothing is given back.
func (p *Plan) Reports(dst []Check, ds []Descriptor, refused bool) []Check {
	first := len(dst)
	for i := range ds {
		d := &ds[i]
		if !d.Negative && !refused {
			continue
		}
		for _, part := range p.parts[d.parts[0]:d.parts[1]] {
			asked, result := &p.checks[part.check], &p.results[part.check]
			c := Check{Key: asked.Key, ScopeLen: asked.ScopeLen, Limit: asked.Limit, Bounds: asked.Bounds, Cost: part.cost}
			switch {
			case d.Negative:
				c.Op, c.Receipt = OpGiveBack, asked.Limit.receiptAt(result.At, asked.Bounds)
			case d.Reported && result.Granted == 0:
				c.Op = OpForce
			case p.comesBack(part.check, ds):
				c.Op, c.Receipt, c.Cost, c.Refundable = OpGiveBack, result.Receipt, result.Granted, asked.Refundable
			}
			if c.Cost > 0 && (c.Op == OpForce || c.Op == OpGiveBack && c.Receipt > 0) {
				dst = appendReport(dst, first, c)
			}
		}
	}
	return dst
}

// appendReport appends a check about a counter that none from first on is about. Of several the greatest counts, and what
// was used goes before what is given back.
func appendReport(dst []Check, first int, c Check) []Check {
	for i := first; i < len(dst); i++ {
		if !bytes.Equal(dst[i].Key, c.Key) {
			continue
		}
		if c.Op == dst[i].Op && c.Cost > dst[i].Cost || c.Op == OpForce && dst[i].Op == OpGiveBack {
			dst[i] = c
		}
		return dst
	}
	return append(dst, c)
}

// receiptAt returns the receipt of a charge at that instant of the store's clock; 0 if that is not enough to know.
func (l *Limit) receiptAt(at Micros, b *Bounds) Micros {
	switch {
	case b != nil:
		return b[b.period(at)]
	case l.algorithm == TokenBucket:
		return at
	case l.algorithm == SlidingLog:
		return 0
	default:
		return at - at%l.window
	}
}

// DescriptorStatus is what became of one descriptor. The zero value is one that no limit is for.
type DescriptorStatus struct {
	// Refused says that it is one for which the request is refused, or would be if others with quota had no room either; the
	// others would have passed, and charged nothing if the request is refused.
	Refused   bool
	Unlimited bool // a rule says so: action allow, a tier without limits, an exempt client
	// Policy, Limit, Remaining and Reset tell of its limit with the longest wait if it is refused, else of its tightest one;
	// Limit is nil if it has none that clients are told about.
	Policy    string
	Limit     *Limit
	Remaining int64
	Reset     Micros // as in [Result]
}

// Status returns what became of a descriptor, after Decide.
func (p *Plan) Status(d *Descriptor) DescriptorStatus {
	if p.refusal != refusalNone { // then nothing was asked
		return DescriptorStatus{Refused: d.refused}
	}
	s := DescriptorStatus{Refused: p.penalized(), Unlimited: d.exempt}
	shown, refusing := -1, false
	for _, part := range p.parts[d.parts[0]:d.parts[1]] {
		i := int(part.check)
		refuses := p.results[i].Refused && (!p.checks[i].Shadow || p.ruleOf(i).quota && p.ruleOf(i).action != ActionLogOnly)
		s.Refused = s.Refused || refuses
		if !p.shows(i, HeadersX|HeadersIETF|HeadersNone) || p.results[i].Local || refusing && !refuses {
			continue
		}
		if shown < 0 || refuses && !refusing || p.tighter(i, shown, refuses) {
			shown, refusing = i, refuses
		}
	}
	if shown >= 0 {
		l, result := p.asked[shown].limit, &p.results[shown]
		s.Policy, s.Limit, s.Remaining, s.Reset = l.policy, l.told(), p.left(shown), result.Reset
	}
	return s
}

// tighter reports whether one check says more than another: of two that refuse the one that does so longer, else the one
// that the fewest such requests are left of.
func (p *Plan) tighter(one, other int, refuse bool) bool {
	if refuse {
		return p.results[one].Wait > p.results[other].Wait
	}
	return p.left(one)/max(1, p.checks[one].Cost) < p.left(other)/max(1, p.checks[other].Cost)
}
