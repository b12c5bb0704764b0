// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// limitSeriesMax bounds the series of limits in a process. A policy may have ten thousand rules
// with a hundred tiers each.
const limitSeriesMax = 4096

// The metrics of policies.
var (
	policyInfoDesc = prometheus.NewDesc("penstock_policy_info",
		"The version of each policy in force, always 1.", []string{"policy", "version"}, nil)
	policyRefusedDesc = prometheus.NewDesc("penstock_policy_refused",
		"Whether the latest edit of a policy was rejected, so that an earlier version is in force: 1 or 0.", []string{"policy"}, nil)
	limitDesc = prometheus.NewDesc("penstock_limit_units",
		"Units that a limit of a rule allows in its window.", []string{"policy", "rule", "tier", "window"}, nil)
	limitsOmittedDesc = prometheus.NewDesc("penstock_limits_omitted",
		"Limits without a series of penstock_limit_units, because there are too many.", nil, nil)
)

// Policies is a collector of the policies in force: their versions, whether an edit was rejected,
// and their limits. The zero Policies has no policies. The type is safe for concurrent use.
type Policies struct {
	mu    sync.Mutex
	shown []shownPolicy // the policies in the order in which they came into force
}

// shownPolicy is a policy in force.
type shownPolicy struct {
	key           any
	name, version string
	refused       func() error
	limits        []limitSeries
	omitted       int // the number of limits that are missing from limits
}

// limitSeries is one series of penstock_limit_units.
type limitSeries struct {
	policy, rule, tier, window string
	units                      float64
}

// Show makes the metrics show a document that has come into force, in place of the document that
// they showed under the same key. The function named refused returns the error for which the latest
// edit was rejected, or nil.
func (p *Policies) Show(key any, d *policyfile.Document, refused func() error) {
	next := shownPolicy{key: key, name: labelOf(d.Name), version: d.Version(), refused: refused}
	next.limits, next.omitted = limitsOf(d)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hideLocked(key)
	p.shown = append(p.shown, next)
}

// Hide removes the document that Show has shown under the same key.
func (p *Policies) Hide(key any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hideLocked(key)
}

func (p *Policies) hideLocked(key any) {
	p.shown = slices.DeleteFunc(p.shown, func(s shownPolicy) bool { return s.key == key })
}

// Describe implements [prometheus.Collector].
func (p *Policies) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{policyInfoDesc, policyRefusedDesc, limitDesc, limitsOmittedDesc} {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector]. If policies of one name have the same limit, as during
// a reload, the one that came into force last is shown.
func (p *Policies) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	shown := slices.Clone(p.shown)
	p.mu.Unlock()
	refused, versions := map[string]float64{}, map[[2]string]bool{}
	limits, omitted := map[limitSeries]bool{}, 0
	for _, one := range slices.Backward(shown) {
		if id := [2]string{one.name, one.version}; !versions[id] {
			versions[id] = true
			ch <- prometheus.MustNewConstMetric(policyInfoDesc, prometheus.GaugeValue, 1, one.name, one.version)
		}
		if one.refused() != nil {
			refused[one.name] = 1
		} else {
			refused[one.name] = max(0, refused[one.name])
		}
		omitted += one.omitted
		for _, limit := range one.limits {
			id := limit
			id.units = 0
			switch {
			case limits[id]:
			case len(limits) == limitSeriesMax:
				omitted++
			default:
				limits[id] = true
				ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, limit.units, limit.policy, limit.rule, limit.tier,
					limit.window)
			}
		}
	}
	for name, value := range refused {
		ch <- prometheus.MustNewConstMetric(policyRefusedDesc, prometheus.GaugeValue, value, name)
	}
	ch <- prometheus.MustNewConstMetric(limitsOmittedDesc, prometheus.GaugeValue, float64(omitted))
}

// limitsOf returns the limits of the enabled rules of a document, and the number of limits beyond
// limitSeriesMax.
func limitsOf(d *policyfile.Document) (all []limitSeries, omitted int) {
	add := func(of limitSeries, texts policyfile.Words) {
		all = appendLimits(all, of, texts)
		omitted += max(0, len(all)-limitSeriesMax)
		all = all[:min(len(all), limitSeriesMax)]
	}
	for i := range d.Rules {
		rule := &d.Rules[i]
		if rule.Enabled != nil && !*rule.Enabled {
			continue
		}
		of := limitSeries{policy: labelOf(d.Name), rule: labelOf(rule.Name)}
		add(of, rule.Limit)
		for _, tier := range slices.Sorted(maps.Keys(rule.Tiers)) {
			of.tier = labelOf(tier)
			add(of, rule.Tiers[tier])
		}
	}
	return all, omitted
}

// appendLimits appends one series for each window: the least of its limits.
func appendLimits(all []limitSeries, of limitSeries, texts policyfile.Words) []limitSeries {
	first := len(all)
	for _, text := range texts {
		next := of
		if limit, err := counter.ParseLimit(text); err == nil {
			next.window, next.units = limit.WindowLabel(), float64(limit.Count())
		} else if text == policy.Unlimited {
			next.units = math.Inf(1)
		} else {
			continue // the document has been compiled, so there is no error
		}
		same := slices.IndexFunc(all[first:], func(s limitSeries) bool { return s.window == next.window })
		if same < 0 {
			all = append(all, next)
		} else if known := &all[first+same]; next.units < known.units {
			known.units = next.units
		}
	}
	return all
}
