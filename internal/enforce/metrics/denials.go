// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policyfile"
)

const (
	// tierOther is the label of tiers that the policy does not name, because a client may have
	// invented them.
	tierOther = "other"
	// tierLabelsMax is the number of tiers of a policy that have their own label.
	tierLabelsMax = 256
)

// Denials are a ruleset's counters of denials by rule and tier. Denials are safe for concurrent
// use.
type Denials struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	tiers  []string                 // the labels for no tier, for other tiers, and for those that the policy names
	index  map[string]int           // the index of each tier that the policy names
	of     []atomic.Pointer[[]lazy] // by rule, then by tier; nil until the rule denies a request
}

// DenialsOf returns the counters of a policy and its ruleset.
func (m *Metrics) DenialsOf(d *policyfile.Document, rs *core.Ruleset) *Denials {
	c := &Denials{total: m.Denials, policy: d.Name, rules: rs, tiers: []string{"", tierOther}, index: map[string]int{"": 0}}
	named := map[string]bool{}
	for i := range d.Rules {
		for tier := range d.Rules[i].Tiers {
			named[tier] = true
		}
		if match := d.Rules[i].Match; match != nil {
			for _, tier := range match.Tier {
				named[tier] = true
			}
		}
	}
	for _, tier := range slices.Sorted(maps.Keys(named)) {
		if _, known := c.index[tier]; !known && len(c.index) < tierLabelsMax {
			c.index[tier] = len(c.tiers)
			c.tiers = append(c.tiers, labelOf(tier))
		}
	}
	c.of = make([]atomic.Pointer[[]lazy], rs.Len())
	return c
}

// Count counts, for the tier of the client, the rules that denied one request.
func (c *Denials) Count(outcomes []core.RuleOutcome, tier string) {
	for i := range outcomes {
		o := &outcomes[i]
		if o.Outcome != core.OutcomeDenied || o.Ruleset != c.rules || o.Index < 0 {
			continue
		}
		column, known := c.index[tier]
		if !known {
			column = 1
		}
		c.row(o.Index)[column].inc(func() prometheus.Counter {
			return c.total.WithLabelValues(c.policy, c.rules.RuleName(o.Index), c.tiers[column])
		})
	}
}

// Denials.row returns the counters of a rule, by tier.
func (c *Denials) row(rule int) []lazy {
	if row := c.of[rule].Load(); row != nil {
		return *row
	}
	made := make([]lazy, len(c.tiers))
	c.of[rule].CompareAndSwap(nil, &made)
	return *c.of[rule].Load()
}
