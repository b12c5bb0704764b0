// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policyfile"
)

const (
	// endpointOther is the label of path patterns beyond endpointLabelsMax, and of requests whose
	// pattern is not known.
	endpointOther = "other"
	// endpointLabelsMax is the number of path patterns of a policy that have their own label.
	endpointLabelsMax = 1024
)

// Endpoints are a ruleset's counters by rule, path pattern and outcome. Rules without a path have
// no such counters. Endpoints are safe for concurrent use.
type Endpoints struct {
	total  *prometheus.CounterVec
	policy string
	rules  *core.Ruleset
	labels [][]string // by rule; nil for a rule without a path, with endpointOther at the end
	of     []atomic.Pointer[[][core.OutcomeCount]lazy]
}

// EndpointsOf returns the counters of a policy and its ruleset.
func (m *Metrics) EndpointsOf(d *policyfile.Document, rs *core.Ruleset) *Endpoints {
	c := &Endpoints{total: m.Endpoints, policy: d.Name, rules: rs, labels: make([][]string, rs.Len()),
		of: make([]atomic.Pointer[[][core.OutcomeCount]lazy], rs.Len())}
	named := 0
	for rule := range c.labels {
		patterns := rs.Endpoints(rule)
		if len(patterns) == 0 {
			continue
		}
		for i := range patterns {
			if named++; named > endpointLabelsMax {
				patterns[i] = endpointOther
			} else {
				patterns[i] = labelOf(patterns[i])
			}
		}
		c.labels[rule] = append(patterns, endpointOther)
	}
	return c
}

// Count counts the outcomes of the plan's request for the rules that have a path.
func (c *Endpoints) Count(plan *core.Plan) {
	outcomes := plan.Outcomes()
	for i := range outcomes {
		o := &outcomes[i]
		if o.Ruleset != c.rules || o.Index < 0 || o.Outcome == core.OutcomeNone || c.labels[o.Index] == nil {
			continue
		}
		at := c.place(plan, i)
		c.row(o.Index)[at][o.Outcome].inc(func() prometheus.Counter {
			return c.total.WithLabelValues(c.policy, c.rules.RuleName(o.Index), c.labels[o.Index][at], o.Outcome.String())
		})
	}
}

// Endpoints.place returns the index of the path pattern that the request matched, among the labels
// of its rule. Outcome i of the plan belongs to a rule that has a path.
func (c *Endpoints) place(plan *core.Plan, i int) int {
	if at := plan.EndpointOf(i); at >= 0 {
		return at
	}
	return len(c.labels[plan.Outcomes()[i].Index]) - 1
}

// Label returns the label of the path pattern that the request matched for the outcome i of the
// plan; "" if the rule has no path. The result ok is false if the outcome is of another ruleset.
func (c *Endpoints) Label(plan *core.Plan, i int) (label string, ok bool) {
	o := &plan.Outcomes()[i]
	if o.Ruleset != c.rules || o.Index < 0 {
		return "", false
	}
	if labels := c.labels[o.Index]; labels != nil {
		label = labels[c.place(plan, i)]
	}
	return label, true
}

// Endpoints.row returns the counters of a rule, by path pattern.
func (c *Endpoints) row(rule int) [][core.OutcomeCount]lazy {
	if row := c.of[rule].Load(); row != nil {
		return *row
	}
	made := make([][core.OutcomeCount]lazy, len(c.labels[rule]))
	c.of[rule].CompareAndSwap(nil, &made)
	return *c.of[rule].Load()
}
