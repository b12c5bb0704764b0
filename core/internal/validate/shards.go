// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// checkShards checks that every limit of a rule can be divided among its shards, and that the rule
// uses nothing that shards do not support.
func (v *Verifier) checkShards(at string, r *policy.Rule) {
	place, n := at+".shards", strconv.Itoa(r.Shards)
	switch {
	case r.Shards == 0:
		return
	case r.Shards < 2 || r.Shards > counter.ShardsMax:
		v.problem(place, n, "is out of bounds", fmt.Sprintf("write 2 to %d, or leave it out", counter.ShardsMax))
		return
	case r.Lease == policy.LeaseAuto:
		v.problem(place, n, "does not go with lease: auto, which solves the same problem", "leave out one of them")
	case r.Action == policy.ActionThrottle:
		v.problem(place, n, "does not go with action: throttle: requests waiting for one shard would be overtaken by requests that find room in another",
			"leave it out, or write action: reject")
	}
	v.checkDivisible(at+".limit", r, r.Limits)
	for _, tier := range slim.SortedKeys(r.Tiers) {
		v.checkDivisible(at+".tiers."+tier, r, r.Tiers[tier].Limits)
	}
	v.checkSettledShards(at+".cost_after.max", r)
}

// checkSettledShards checks that a cost from a response fits into one shard. The cost is charged to
// the shard that admitted the request, which can go into debt by at most its part of one window.
// The rest would be dropped even if other shards had room.
func (v *Verifier) checkSettledShards(place string, r *policy.Rule) {
	if r.CostAfter == nil {
		return
	}
	holds := counter.CountMax
	add := func(limits []counter.Limit) {
		for i := range limits {
			if l := &limits[i]; l.Algorithm() != 0 {
				holds = min(holds, l.Count()/int64(r.Shards), l.Capacity()/int64(r.Shards))
			}
		}
	}
	add(r.Limits)
	for _, set := range r.Tiers {
		add(set.Limits)
	}
	remedy := fmt.Sprintf("write %d at most, raise the limit, or take fewer shards", holds)
	switch most := r.CostAfter.Max; {
	case holds < 1: // this is already reported as a problem of the limit
	case most == 0:
		v.problem(place, "", fmt.Sprintf("is missing: one of %d shards holds %d", r.Shards, holds), remedy)
	case most > holds:
		v.problem(place, strconv.FormatInt(most, 10), fmt.Sprintf("is more than one of %d shards holds", r.Shards), remedy)
	}
}

// checkDivisible checks that each shard of the rule gets a whole number of units of the limits.
func (v *Verifier) checkDivisible(at string, r *policy.Rule, limits []counter.Limit) {
	for i := range limits {
		l, place := &limits[i], fmt.Sprintf("%s[%d]", at, i)
		if l.Algorithm() == 0 {
			continue
		}
		v.checkMultiple(place, r, l, "count", l.Count())
		if l.Capacity() != l.Count() {
			v.checkMultiple(place, r, l, "burst", l.Capacity())
		}
	}
}

// checkMultiple checks that one number of a limit can be divided among the rule's shards.
func (v *Verifier) checkMultiple(place string, r *policy.Rule, l *counter.Limit, what string, n int64) {
	shards, most := int64(r.Shards), counter.CountMax
	if l.Algorithm() == counter.SlidingLog {
		most = counter.LogCountMax
	}
	rest := n % shards
	if rest == 0 {
		return
	}
	remedy := "write a " + what + " of "
	switch below, above := n-rest, n-rest+shards; {
	case below == 0:
		remedy += strconv.FormatInt(above, 10)
	case above > most:
		remedy += strconv.FormatInt(below, 10)
	default:
		remedy += strconv.FormatInt(below, 10) + " or " + strconv.FormatInt(above, 10)
	}
	v.problem(place, l.String(), fmt.Sprintf("has a %s of %d, which %d shards cannot divide evenly", what, n, shards),
		remedy+", or other shards")
}

// fewerShards returns the advice to use at most the given number of shards.
func fewerShards(most int64) string {
	if most < 2 {
		return "no shards"
	}
	return fmt.Sprintf("%d shards at most", most)
}
