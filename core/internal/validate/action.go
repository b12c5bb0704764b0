// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// checkActions checks that a rule has the fields that its action needs, and none that only another
// action uses.
func (v *Verifier) checkActions(at string, r *policy.Rule) {
	v.checkThrottle(at, r)
	var unfit []string // the fields that this action does not use
	why := ""
	switch r.Action {
	case policy.ActionAllow:
		unfit, why = slices.Concat(waitWords[:], settleWords[:], []string{"response"}), "allow, which counts nothing and denies nothing"
	case policy.ActionBlock:
		unfit, why = slices.Concat(waitWords[:], settleWords[:]), "block, which counts nothing and always denies"
		v.response(at+".response", r.Response)
	case policy.ActionLogOnly:
		unfit, why = slices.Concat(waitWords[:], []string{"response"}), "log_only, which denies nothing"
	default:
		return
	}
	present := map[string]bool{"retry_after": r.RetryAfter != 0, "retry_jitter": r.RetryJitter != 0,
		"cost_after": r.CostAfter != nil, "count_if": len(r.CountIf) > 0, "refund_on": len(r.RefundOn) > 0,
		"response": r.Response != nil}
	for _, word := range unfit {
		if present[word] {
			v.problem(at+"."+word, "", "does not go with action: "+why, "leave it out")
		}
	}
}

// The fields that apply after a decision, grouped by topic.
var (
	waitWords   = [...]string{"retry_after", "retry_jitter"}
	settleWords = [...]string{"cost_after", "count_if", "refund_on"}
)

func (v *Verifier) costs(at string, r *policy.Rule) {
	if len(r.Cost) > policy.CostsMax {
		v.problem(at+".cost", strconv.Itoa(len(r.Cost)), fmt.Sprintf("are more than %d entries", policy.CostsMax),
			"split the rule")
		return
	}
	for i := range r.Cost {
		c, place := &r.Cost[i], fmt.Sprintf("%s.cost[%d]", at, i)
		v.checkCost(place+".n", r, c.N, c.Match.Tier)
		v.costHeader(place, c)
		if i > 0 && matchesAll(&r.Cost[i-1].Match) {
			v.problem(place, "", fmt.Sprintf("is never reached: cost[%d] matches everything", i-1),
				"put the entry without match last")
		}
	}
}

// costHeader checks the request header of a cost. A client that can set the header decides its own
// cost, so only the listed peers are trusted.
func (v *Verifier) costHeader(place string, c *policy.Cost) {
	if c.Header == "" {
		if len(c.Trusted) > 0 {
			v.problem(place+".trusted", "", "has no effect without a header", "add header, or leave it out")
		}
		if c.Max != 0 {
			v.problem(place+".max", strconv.FormatInt(c.Max, 10), "has no effect without a header", "add header, or leave it out")
		}
		return
	}
	v.header(place+".header", c.Header)
	if len(c.Trusted) == 0 {
		v.problem(place+".trusted", "", "is missing: no proxy is trusted to set the header "+c.Header,
			"write the addresses of the proxies that set it, and remove it from other requests")
	}
	if c.Max < 0 || c.Max > counter.CountMax {
		v.problem(place+".max", strconv.FormatInt(c.Max, 10), "is out of bounds", fmt.Sprintf("write 1 to %d", counter.CountMax))
	}
}

// checkCost checks a cost in the rule itself, for clients of the given tiers or, without tiers, for
// all clients. A cost that exceeds the limit of a client would always deny that client.
func (v *Verifier) checkCost(place string, r *policy.Rule, n int64, tiers []string) {
	if n < 1 || n > counter.CountMax {
		v.problem(place, strconv.FormatInt(n, 10), "is out of bounds", fmt.Sprintf("write 1 to %d", counter.CountMax))
		return
	}
	everybody := len(tiers) == 0
	if everybody {
		tiers = slim.SortedKeys(r.Tiers)
	}
	rules := everybody
	for _, tier := range tiers {
		if set, own := r.Tiers[tier]; own {
			v.checkPassable(place, r, n, "tiers."+tier, set.Limits)
		} else {
			rules = true
		}
	}
	if rules {
		v.checkPassable(place, r, n, "limit", r.Limits)
	}
}

// checkPassable checks that a cost can pass the limits in the given field of the rule.
func (v *Verifier) checkPassable(place string, r *policy.Rule, n int64, word string, limits []counter.Limit) {
	for i := range limits {
		switch l := &limits[i]; {
		case l.Algorithm() == 0:
		case n > l.Capacity():
			v.problem(place, strconv.FormatInt(n, 10), fmt.Sprintf("can never pass %s[%d], %s", word, i, l),
				fmt.Sprintf("lower it to %d, or raise the limit", l.Capacity()))
		case r.Shards > 1 && n > l.Capacity()/int64(r.Shards):
			v.problem(place, strconv.FormatInt(n, 10), fmt.Sprintf("can never pass one of %d shards of %s[%d], %s", r.Shards, word, i, l),
				fmt.Sprintf("lower it to %d, raise the limit, or take %s", l.Capacity()/int64(r.Shards), fewerShards(l.Capacity()/n)))
		}
	}
}
