// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// dividing divides what is known only with a request among regions: a client's own limits and its
// grants. It is an interface so that a program that calls no store, such as the filter for Envoy,
// does not link it. Such a program shows a client's own limit as a whole.
type dividing interface {
	// own returns a client's own limits, as ownLimits.of does
	own(o *ownLimits, r *rule, holdsClient bool) *limitSet
	// compile is compileSet for the region's parts of a set
	compile(rule string, set policy.LimitSet) limitSet
	part(units int64) int64 // part returns the region's part of some units
}

type regionDivider struct {
	division policy.Division
	lends    bool
}

var _ dividing = (*regionDivider)(nil)

// divide prepares the rules that are divided among regions.
func (rs *Ruleset) divide(p *policy.Policy) {
	for i := range rs.rules {
		r, source := &rs.rules[i], &p.Rules[i]
		if !source.Division.Divides() {
			continue
		}
		d := &regionDivider{source.Division, source.Lends}
		r.region = d
		d.lend(r.limits, source.Whole)
		for tier, set := range r.tiers {
			d.lend(set.limits, source.Tiers[tier].Whole)
		}
	}
}

// lend has units of limits lent among the regions, if the rule and the algorithms allow it. whole
// are the limits over all regions.
func (d *regionDivider) lend(limits []ruleLimit, whole []counter.Limit) {
	if !d.lends || len(whole) != len(limits) {
		return
	}
	whole = slices.Clone(whole)
	for i := range limits {
		if policy.Lendable(&whole[i]) && !limits[i].none {
			limits[i].whole = &whole[i]
		}
	}
}

func (d *regionDivider) own(o *ownLimits, r *rule, holdsClient bool) *limitSet {
	return o.apart(r, shardSpec{region: d.division}, holdsClient)
}

func (d *regionDivider) part(units int64) int64 { return d.division.Part(units) }

// compile divides a set of limits. A limit of which the region has no unit becomes a limit of one
// unit that nothing passes, since there is no limit of 0.
func (d *regionDivider) compile(rule string, set policy.LimitSet) limitSet {
	sources, none := make([]counter.Limit, len(set.Limits)), make([]bool, len(set.Limits))
	for i := range sources {
		l := &set.Limits[i]
		part, ok := d.division.Limit(l)
		if !ok {
			part, _ = l.Resized(1, 1)
			none[i] = true
		}
		sources[i] = part
	}
	made := limitSet{limits: compileLimits(rule, sources), unlimited: set.Unlimited}
	for i := range none {
		made.limits[i].none = none[i]
	}
	d.lend(made.limits, set.Limits)
	return made
}

// part returns the units of a grant in the rule's region.
func (r *rule) part(units int64) int64 {
	if r.region == nil {
		return units
	}
	return r.region.part(units)
}
