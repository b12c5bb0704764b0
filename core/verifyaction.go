// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"strconv"
)

// actions checks that a rule says of its action what goes with it, and nothing that another action would need.
func (v *verifier) actions(at string, r *Rule) {
	v.throttle(at, r)
	var unfit []string // the words that this action has no use for
	why := ""
	switch r.Action {
	case ActionAllow:
		unfit, why = append(waitWords, append(settleWords, "response")...), "allow, which counts nothing and refuses nobody"
	case ActionBlock:
		unfit, why = append(waitWords, settleWords...), "block, which counts nothing and refuses for good"
		v.response(at+".response", r.Response)
	case ActionLogOnly:
		unfit, why = append(waitWords, "response"), "log_only, which refuses nobody"
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

// The words of what follows a decision, by what they are about.
var (
	waitWords   = slices.Clip([]string{"retry_after", "retry_jitter"})
	settleWords = slices.Clip([]string{"cost_after", "count_if", "refund_on"})
)

func (v *verifier) costs(at string, r *Rule) {
	if len(r.Cost) > costsMax {
		v.problem(at+".cost", strconv.Itoa(len(r.Cost)), fmt.Sprintf("are more than %d entries", costsMax),
			"split the rule")
		return
	}
	for i := range r.Cost {
		c, place := &r.Cost[i], fmt.Sprintf("%s.cost[%d]", at, i)
		v.cost(place+".n", r, c.N, c.Match.Tier)
		v.costHeader(place, c)
		if i > 0 && matchesAll(&r.Cost[i-1].Match) {
			v.problem(place, "", fmt.Sprintf("is never reached: cost[%d] matches everything", i-1),
				"put the entry without match last")
		}
	}
}

// costHeader checks what a cost says of a request header. Whoever may write it decides what others pay, so nobody is
// trusted unless named.
func (v *verifier) costHeader(place string, c *Cost) {
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
		v.problem(place+".trusted", "", "is missing: nobody is believed about the header "+c.Header,
			"write the addresses of the proxies that set it, and remove it from other requests")
	}
	if c.Max < 0 || c.Max > CountMax {
		v.problem(place+".max", strconv.FormatInt(c.Max, 10), "is out of bounds", fmt.Sprintf("write 1 to %d", CountMax))
	}
}

// cost checks a cost that the rule itself says, for clients of some tiers or, without any, for everybody: one that a
// client's limit never lets through would refuse that client for good.
func (v *verifier) cost(place string, r *Rule, n int64, tiers []string) {
	if n < 1 || n > CountMax {
		v.problem(place, strconv.FormatInt(n, 10), "is out of bounds", fmt.Sprintf("write 1 to %d", CountMax))
		return
	}
	everybody := len(tiers) == 0
	if everybody {
		tiers = sortedKeys(r.Tiers)
	}
	rules := everybody
	for _, tier := range tiers {
		if set, own := r.Tiers[tier]; own {
			v.passable(place, r, n, "tiers."+tier, set.Limits)
		} else {
			rules = true
		}
	}
	if rules {
		v.passable(place, r, n, "limit", r.Limits)
	}
}

// passable checks that a cost can pass limits that stand under a word of the rule.
func (v *verifier) passable(place string, r *Rule, n int64, word string, limits []Limit) {
	for i := range limits {
		switch l := &limits[i]; {
		case l.algorithm == 0:
		case n > l.Capacity():
			v.problem(place, strconv.FormatInt(n, 10), fmt.Sprintf("can never pass %s[%d], %s", word, i, l),
				fmt.Sprintf("lower it to %d, or raise the limit", l.Capacity()))
		case r.Shards > 1 && n > l.Capacity()/int64(r.Shards):
			v.problem(place, strconv.FormatInt(n, 10), fmt.Sprintf("can never pass one of %d shards of %s[%d], %s", r.Shards, word, i, l),
				fmt.Sprintf("lower it to %d, raise the limit, or take %s", l.Capacity()/int64(r.Shards), fewerShards(l.Capacity()/n)))
		}
	}
}
