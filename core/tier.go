// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

// limitSet is a [LimitSet] made ready for requests under one rule.
type limitSet struct {
	limits    []ruleLimit
	unlimited bool // then there are none
}

// ruleLimit is a limit of a rule with the texts that stand in keys and header fields.
type ruleLimit struct {
	limit  Limit
	tail   string // of its keys: ":60s:sw"
	policy string // its policy name
	item   string // its list item in RateLimit-Policy
	quota  string // X-RateLimit-Limit
	shard  *shard // limit is one shard of it; nil: it is all
}

// whose says whose limits are used under a rule.
type whose uint8

const (
	whoseRule whose = iota
	whoseTier
	whoseClient
)

// limitsOf returns the limits that the client has under a rule: its own, else those of its tier, else the rule's. It
// does not allocate, but for limits of the client's own that are new here (see Overrides).
func (p *Plan) limitsOf(r *rule) (set limitSet, of whose) {
	if o := p.asking.Overrides; o != nil {
		if own := o.of(r, p.countsClient(r)); own != nil {
			return *own, whoseClient
		}
	}
	if p.asking.Tier != "" {
		if tier, ok := r.tiers[p.asking.Tier]; ok {
			return tier, whoseTier
		}
	}
	return limitSet{limits: r.limits}, whoseRule
}

// compileTiers makes the rule's tiers ready; nil for none.
func compileTiers(source *Rule) map[string]limitSet {
	if len(source.Tiers) == 0 {
		return nil
	}
	tiers := make(map[string]limitSet, len(source.Tiers))
	for tier, set := range source.Tiers {
		tiers[tier] = compileSet(source.Name, set)
	}
	return tiers
}

func compileSet(rule string, set LimitSet) limitSet {
	return limitSet{limits: compileLimits(rule, set.Limits), unlimited: set.Unlimited}
}

// compileLimits adds to the limits of a rule the texts they are known by. A limit that is none is reported elsewhere.
func compileLimits(rule string, sources []Limit) []ruleLimit {
	limits := make([]ruleLimit, len(sources))
	for i := range sources {
		l := &limits[i]
		l.limit = sources[i]
		if l.limit.algorithm == 0 {
			continue
		}
		l.tail = keyTail(&l.limit)
		l.policy = policyName(rule, sources, i)
		l.item = policyItem(l.policy, &l.limit)
		l.quota = strconv.FormatInt(l.limit.Capacity(), 10)
	}
	return limits
}

// keyTail returns the end of a limit's keys. Under one rule, limits with the same tail share their counters.
func keyTail(l *Limit) string { return ":" + l.WindowLabel() + ":" + l.algorithm.Label() }

// policyName returns what clients know the i-th of a rule's limits by: the rule's name, with the window if there are
// several limits, and with the algorithm's label if several of them have that window.
func policyName(rule string, limits []Limit, i int) string {
	if len(limits) == 1 {
		return rule
	}
	window, same := limits[i].windowName(), 0
	for j := range limits {
		if limits[j].windowName() == window {
			same++
		}
	}
	name := rule + "-" + window
	if same > 1 {
		name += "-" + limits[i].algorithm.Label()
	}
	return name
}
