// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/tally"
)

// Observer counts what becomes of requests that come another way, as over Envoy's rate limit protocol, in the bridge's
// metrics, and says which policy is for them.
type Observer struct {
	b       *Bridge
	limits  *prometheus.CounterVec  // by result
	domains atomic.Pointer[domains] // of the policy that was in force last
	// domainTold is the second in which an unknown domain was logged last.
	domainTold atomic.Int64
}

// Observer returns the one observer of a bridge.
func (b *Bridge) Observer() *Observer { return &Observer{b: b, limits: b.metrics.rls} }

// Decided counts a request that was decided.
func (o *Observer) Decided(plan *core.Plan, _ *core.Decision) {
	o.limits.WithLabelValues(callAnswered).Inc()
	known := *o.b.editions.known.Load()
	for _, e := range known {
		e.credentials.Count(plan.Credentials())
		e.outcomes.Count(plan.Outcomes())
	}
	for _, one := range plan.Outcomes() {
		if !slices.ContainsFunc(known, func(e *edition) bool { return e.ruleset == one.Ruleset }) {
			o.countForeign(one)
		}
	}
}

// countForeign counts what became of a rule that is of no edition: of a limit that Envoy sends, whose rule always has one name.
func (o *Observer) countForeign(one core.RuleOutcome) {
	if one.Index >= 0 && one.Outcome != core.OutcomeNone {
		o.b.metrics.Requests.WithLabelValues(one.Ruleset.Name(), one.Ruleset.RuleName(one.Index), one.Outcome.String()).Inc()
	}
}

// StoreFailed counts that the store did not answer.
func (o *Observer) StoreFailed(err error, _ bool) {
	o.b.metrics.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc()
}

// UnknownDomain counts a request for whose domain there is no policy.
func (o *Observer) UnknownDomain() { o.limits.WithLabelValues("unknown_domain").Inc() }

// Invalid counts a request that was answered with an error.
func (o *Observer) Invalid(error) { o.limits.WithLabelValues(callMalformed).Inc() }

// Busy counts a request that came when too many were under way.
func (o *Observer) Busy() { o.limits.WithLabelValues(callBusy).Inc() }

// Panicked logs a panic.
func (o *Observer) Panicked(reason any) {
	o.limits.WithLabelValues("panic").Inc()
	o.b.panicked(reason)
}
