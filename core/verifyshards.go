// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
)

// shards checks that every limit of a rule can be divided among its shards, and that nothing else stands there that they
// cannot do.
func (v *verifier) shards(at string, r *Rule) {
	place, n := at+".shards", strconv.Itoa(r.Shards)
	switch {
	case r.Shards == 0:
		return
	case r.Shards < 2 || r.Shards > ShardsMax:
		v.problem(place, n, "is out of bounds", fmt.Sprintf("write 2 to %d, or leave it out", ShardsMax))
		return
	case r.Lease == LeaseAuto:
		v.problem(place, n, "does not go with lease: auto, which is another answer to the same question", "leave out one of them")
	case r.Action == ActionThrottle:
		v.problem(place, n, "does not go with action: throttle: who waits for one shard is passed by those who find room in another",
			"leave it out, or write action: reject")
	}
	v.divisible(at+".limit", r, r.Limits)
	for _, tier := range sortedKeys(r.Tiers) {
		v.divisible(at+".tiers."+tier, r, r.Tiers[tier].Limits)
	}
	v.settledShards(at+".cost_after.max", r)
}

// settledShards checks that what a response says fits into a shard. It is charged to the one that was asked, which goes into
// debt by its part of one window at most: what is more would be forgotten, where another shard has room.
func (v *verifier) settledShards(place string, r *Rule) {
	if r.CostAfter == nil {
		return
	}
	holds := CountMax
	add := func(limits []Limit) {
		for i := range limits {
			if l := &limits[i]; l.algorithm != 0 {
				holds = min(holds, l.count/int64(r.Shards), l.burst/int64(r.Shards))
			}
		}
	}
	add(r.Limits)
	for _, set := range r.Tiers {
		add(set.Limits)
	}
	remedy := fmt.Sprintf("write %d at most, raise the limit, or take fewer shards", holds)
	switch most := r.CostAfter.Max; {
	case holds < 1: // which is said of the limit
	case most == 0:
		v.problem(place, "", fmt.Sprintf("is missing: one of %d shards holds %d", r.Shards, holds), remedy)
	case most > holds:
		v.problem(place, decimal(most), fmt.Sprintf("is more than one of %d shards holds", r.Shards), remedy)
	}
}

// divisible checks the limits of a rule with shards that stand at a place: each shard has a whole number of units.
func (v *verifier) divisible(at string, r *Rule, limits []Limit) {
	for i := range limits {
		l, place := &limits[i], fmt.Sprintf("%s[%d]", at, i)
		if l.algorithm == 0 {
			continue
		}
		v.multiple(place, r, l, "count", l.count)
		if l.burst != l.count {
			v.multiple(place, r, l, "burst", l.burst)
		}
	}
}

// multiple checks that a limit's number can be divided among the rule's shards.
func (v *verifier) multiple(place string, r *Rule, l *Limit, what string, n int64) {
	shards, most := int64(r.Shards), CountMax
	if l.algorithm == SlidingLog {
		most = LogCountMax
	}
	rest := n % shards
	if rest == 0 {
		return
	}
	remedy := "write a " + what + " of "
	switch below, above := n-rest, n-rest+shards; {
	case below == 0:
		remedy += decimal(above)
	case above > most:
		remedy += decimal(below)
	default:
		remedy += decimal(below) + " or " + decimal(above)
	}
	v.problem(place, l.String(), fmt.Sprintf("has a %s of %d, which %d shards cannot share alike", what, n, shards),
		remedy+", or other shards")
}

// fewerShards says how many shards there may be at most.
func fewerShards(most int64) string {
	if most < 2 {
		return "no shards"
	}
	return fmt.Sprintf("%d shards at most", most)
}
