// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// limitSet is a [policy.LimitSet] compiled for one rule.
type limitSet struct {
	limits    []ruleLimit
	unlimited bool // the client has no limit, and limits is empty
}

// ruleLimit is a limit of a rule with its texts for keys and header fields.
type ruleLimit struct {
	_ slim.Incomparable

	limit counter.Limit
	tail  string // the end of its keys: ":60s:sw"
	text  LimitText
	shard *shard      // set if limit is the part of one shard; otherwise nil
	part  limitRegion // the region's data about the limit; nil if there are none
}

// limitOwner identifies the owner of the limits in use under a rule.
type limitOwner uint8

const (
	whoseRule limitOwner = iota
	whoseTier
	whoseClient
	whoseRecord
)

// limitsOf returns the client's limits under a rule, without grants. They come from the first
// source that has any, in this order: the key or token, the client's record in the directory, the
// tier, the rule. limitsOf allocates only if the client's own limits are not compiled for the rule
// yet (see ownLimits).
func (p *Plan) limitsOf(r *rule) (set limitSet, of limitOwner) {
	if o := p.who.Identity.Overrides; o != nil {
		if own := ownLimitsOf(o).limitsFor(r, p.countsClient(r)); own != nil {
			return *own, whoseClient
		}
	}
	if p.records.overridden > 0 {
		if own := p.limitsOfRecords(r); own != nil {
			return *own, whoseRecord
		}
	}
	if p.who.Identity.Tier != "" {
		if tier, ok := r.tiers[p.who.Identity.Tier]; ok {
			return tier, whoseTier
		}
	}
	return limitSet{limits: r.limits}, whoseRule
}

// compileTiers compiles the rule's tiers; nil for none.
func compileTiers(source *policy.Rule) map[string]limitSet {
	if len(source.Tiers) == 0 {
		return nil
	}
	tiers := make(map[string]limitSet, len(source.Tiers))
	for tier, set := range source.Tiers {
		tiers[tier] = compileSet(source.Name, set)
	}
	return tiers
}

func compileSet(rule string, set policy.LimitSet) limitSet {
	return limitSet{limits: compileLimits(rule, set.Limits), unlimited: set.Unlimited}
}

// compileLimits returns a rule's limits with their texts for keys and header fields. Validation
// reports invalid limits.
func compileLimits(rule string, sources []counter.Limit) []ruleLimit {
	limits := make([]ruleLimit, len(sources))
	for i := range sources {
		l := &limits[i]
		l.limit = sources[i]
		if l.limit.Algorithm() == 0 {
			continue
		}
		l.tail = counter.KeyTail(&l.limit)
		l.text.Name = policy.PolicyName(rule, sources, i)
		l.text.Item = policyItem(l.text.Name, &l.limit)
		l.text.Quota = strconv.FormatInt(l.limit.Capacity(), 10)
	}
	return limits
}

// policyItem returns a limit's item in RateLimit-Policy. The item has no parameter w if the window
// is not a whole number of seconds.
func policyItem(name string, l *counter.Limit) string {
	item := `"` + name + `";q=` + strconv.FormatInt(l.Count(), 10)
	if l.Calendar() == 0 && l.Window()%counter.Second == 0 {
		item += ";w=" + strconv.FormatInt(int64(l.Window()/counter.Second), 10)
	}
	if l.Algorithm() == counter.TokenBucket {
		item += ";penstock-burst=" + strconv.FormatInt(l.Capacity(), 10)
	}
	return item
}
