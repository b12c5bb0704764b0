// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package core

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// ruleRegion and limitRegion are the data that rules and limits keep about their region. In the
// filter, ruleRegion and limitRegion are empty structs.
type (
	ruleRegion  = *regionDivider
	limitRegion = *regionPart
)

// regionPart holds what a limit that is divided among regions needs besides the region's part of
// the limit.
type regionPart struct {
	whole *counter.Limit // the limit over all regions, if they lend each other units; otherwise nil
	none  bool           // nothing passes, because the region has no unit of the original limit
	told  bool           // the regions tell each other what they have counted
}

// regionDivider divides a client's own limits and its grants among regions. Both are known only
// when a request arrives. The filter for Envoy does not link regionDivider, and shows a client's
// own limit undivided.
type regionDivider struct{ *policy.RegionPart }

// Ruleset.divide adds the data about regions to the rules whose limits are divided among regions.
func (rs *Ruleset) divide(p *policy.Policy) {
	for i := range rs.rules {
		r, source := &rs.rules[i], &p.Rules[i]
		if source.Region == nil {
			continue
		}
		d := &regionDivider{source.Region}
		r.region = d
		d.mark(r.limits, d.Whole)
		for tier, set := range r.tiers {
			d.mark(set.limits, d.WholeTiers[tier])
		}
	}
}

// regionDivider.mark marks the limits whose units the regions lend each other and the limits whose
// counts they tell each other, as the rule and the algorithms allow. The argument whole contains
// the limits over all regions.
func (d *regionDivider) mark(limits []ruleLimit, whole []counter.Limit) {
	d.lend(limits, whole)
	for i := range limits {
		if d.tells(&limits[i].limit) {
			limits[i].part = &toldPart
		}
	}
}

// toldPart is the regionPart of every limit whose counts the regions tell each other.
var toldPart = regionPart{told: true}

// regionDivider.tells reports whether the regions tell each other their counts of a limit.
func (d *regionDivider) tells(l *counter.Limit) bool {
	return d.Gossip > 0 && policy.Tellable(l, d.Gossip)
}

// regionDivider.lend marks the limits whose units the regions lend each other: see mark.
func (d *regionDivider) lend(limits []ruleLimit, whole []counter.Limit) {
	if !d.Lends || len(whole) != len(limits) {
		return
	}
	whole = slices.Clone(whole)
	for i := range limits {
		if policy.Lendable(&whole[i]) && limits[i].part == nil {
			limits[i].part = &regionPart{whole: &whole[i]}
		}
	}
}

// ownPart returns the region's parts of a client's own limits for a rule. The result ok is false if
// the rule has no regions, or if it also has shards, which then divide the limits.
func (o *ownLimits) ownPart(r *rule, holdsClient bool) (set *limitSet, ok bool) {
	if r.region == nil || r.spread != nil {
		return nil, false
	}
	return o.separateLimits(r, shardSpec{region: r.region.RegionPart}, holdsClient), true
}

// compileOwn is compileSet for a client's own limits under the rule.
func (r *rule) compileOwn(set *policy.LimitSet) limitSet {
	if r.region == nil {
		return compileSet(r.name, *set)
	}
	return r.region.compile(r.name, *set)
}

// regionDivider.compile divides a set of limits. No limit can be 0. So if the region has no unit of
// a limit, that limit becomes a limit of one unit that denies every request.
func (d *regionDivider) compile(rule string, set policy.LimitSet) limitSet {
	sources, none := make([]counter.Limit, len(set.Limits)), make([]bool, len(set.Limits))
	for i := range sources {
		l := &set.Limits[i]
		if d.tells(l) {
			sources[i] = *l
			continue
		}
		part, ok := d.Division.Limit(l)
		if !ok {
			part, _ = l.Resized(1, 1)
			none[i] = true
		}
		sources[i] = part
	}
	made := limitSet{limits: compileLimits(rule, sources), unlimited: set.Unlimited}
	for i := range none {
		if none[i] {
			made.limits[i].part = &regionPart{none: true}
		}
	}
	d.mark(made.limits, set.Limits)
	return made
}

// ruleLimit.adjust completes a check of the limit with the region's data.
func (l *ruleLimit) adjust(c *counter.Check) {
	if l.part == nil {
		return
	}
	c.WholeLimit, c.Gossip = l.part.whole, l.part.told
	if l.part.none {
		c.Cost = l.limit.Capacity() + 1
	}
}

// ruleLimit.closed reports whether no request passes the limit.
func (l *ruleLimit) closed() bool { return l.part != nil && l.part.none }

// sameRegion reports whether both limits have the same data about their region.
func (l *ruleLimit) sameRegion(o *ruleLimit) bool {
	if l.part == nil || o.part == nil {
		return l.part == o.part
	}
	a, b := l.part, o.part
	return a.none == b.none && a.told == b.told && (a.whole == b.whole || a.whole != nil && b.whole != nil && *a.whole == *b.whole)
}

// rule.part returns how many units of a grant to the limit l belong to the rule's region.
func (r *rule) part(l *ruleLimit, units int64) int64 {
	if r.region == nil || l.told() {
		return units
	}
	return r.region.Division.Part(units)
}

// ruleLimit.told reports whether the regions report their counts of the limit to each other.
func (l *ruleLimit) told() bool { return l.part != nil && l.part.told }
