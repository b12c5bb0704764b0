// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
)

// Total is the number of requests that a rule admitted and denied since the process began. The rule
// "" is the policy itself.
type Total struct {
	Policy, Rule     string
	Admitted, Denied uint64
}

// The variable named admitting has the outcomes with which a request counts as admitted by a rule,
// and denying those with which it counts as denied. If a rule charged nothing because another rule
// denied the request, the request does not count for that rule.
var (
	admitting = [core.OutcomeCount]bool{core.OutcomeAllowed: true, core.OutcomeShadowDenied: true, core.OutcomeExempt: true,
		core.OutcomeDegradedAllowed: true, core.OutcomeDegradedLocal: true, core.OutcomeDelayed: true}
	denying = [core.OutcomeCount]bool{core.OutcomeDenied: true, core.OutcomeBlocked: true, core.OutcomeMissing: true,
		core.OutcomeDegradedDenied: true, core.OutcomeUnauthorized: true, core.OutcomePenalized: true, core.OutcomeOversized: true}
)

// Denies reports whether a request with this outcome of a rule is denied.
func Denies(o core.Outcome) bool { return denying[o] }

// Admits reports whether a request with this outcome of a rule is admitted by the rule.
func Admits(o core.Outcome) bool { return admitting[o] }

// Totals returns the requests by rule. Totals takes a millisecond for a few thousand series.
func (m *Metrics) Totals() []Total {
	registry := prometheus.NewPedanticRegistry()
	if registry.Register(m.Requests) != nil {
		return nil // a new registry accepts any collector
	}
	families, err := registry.Gather()
	if err != nil {
		return nil
	}
	type name struct{ policy, rule string }
	sums := map[name]*Total{}
	for _, family := range families {
		for _, series := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range series.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			of := name{labels["policy"], labels["rule"]}
			if sums[of] == nil {
				sums[of] = &Total{Policy: of.policy, Rule: of.rule}
			}
			n := uint64(series.GetCounter().GetValue())
			switch {
			case containsName(&admitting, labels["outcome"]):
				sums[of].Admitted += n
			case containsName(&denying, labels["outcome"]):
				sums[of].Denied += n
			}
		}
	}
	all := make([]Total, 0, len(sums))
	for _, total := range sums {
		all = append(all, *total)
	}
	return all
}

// containsName reports whether one of the outcomes has the name.
func containsName(outcomes *[core.OutcomeCount]bool, name string) bool {
	for o, is := range outcomes {
		if is && core.Outcome(o).String() == name {
			return true
		}
	}
	return false
}
