// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/live"
)

// Observer counts, in the bridge's metrics, the requests that do not come from filters, such as
// those over Envoy's rate limit protocol. An Observer also returns the policy that applies to them.
type Observer struct {
	b       *Bridge
	limits  *prometheus.CounterVec  // by result
	domains atomic.Pointer[domains] // the domains of the policy that was last in force
	// the second in which an unknown domain was logged last.
	domainLoggedAt atomic.Int64
	unmarkedLogged sync.Once // a call without a mark was logged
}

// Observer returns an observer of the bridge.
func (b *Bridge) Observer() *Observer { return &Observer{b: b, limits: b.metrics.rls} }

// Decided counts a request that was decided, and ends its span.
func (o *Observer) Decided(plan *core.Plan, d *core.Decision, span *enforce.Span, failure error) {
	o.limits.WithLabelValues(callAnswered).Inc()
	known := o.b.policy.Known()
	o.b.enforcer.Count(plan, d, known...)
	span.End(plan, d, failure, known...)
	for _, one := range plan.Outcomes() {
		if !slices.ContainsFunc(known, func(v *live.Version) bool { return v.Ruleset == one.Ruleset }) {
			o.countForeign(one)
		}
	}
}

// countForeign counts the outcome of a limit that Envoy sends. Such a limit is not a rule of any
// version of the policy. All of these limits are counted under one rule name.
func (o *Observer) countForeign(one core.RuleOutcome) {
	if one.Index >= 0 && one.Outcome != core.OutcomeNone {
		o.b.metrics.Requests.WithLabelValues(one.Ruleset.Name(), one.Ruleset.RuleName(one.Index), one.Outcome.String()).Inc()
	}
}

// UnknownDomain counts a request whose domain no policy covers.
func (o *Observer) UnknownDomain() { o.limits.WithLabelValues("unknown_domain").Inc() }

// InvalidTarget counts a request that was denied because servers could read its path or host
// differently.
func (o *Observer) InvalidTarget() { o.limits.WithLabelValues("invalid_target").Inc() }

// Refused counts the end of a stream that Envoy has denied.
func (o *Observer) Refused() { o.limits.WithLabelValues("refused").Inc() }

// Unmarked logs, once, that Envoy sends hits of descriptors without saying whether they have
// already happened.
func (o *Observer) Unmarked() {
	o.unmarkedLogged.Do(func() {
		o.b.logger.Warn("Envoy sends hits_addend of a descriptor, but does not say whether the stream has ended, so usage that it reports may not be " +
			"charged: add to grpc_service of its rate_limit_service: initial_metadata: [{key: penstock-stream, value: \"ended=%RESPONSE_CODE_DETAILS%,%UPSTREAM_HOST%\"}]")
	})
}

// Invalid counts a request that was answered with an error.
func (o *Observer) Invalid(error) { o.limits.WithLabelValues(callMalformed).Inc() }

// Busy counts a request beyond the bound of concurrent requests.
func (o *Observer) Busy() { o.limits.WithLabelValues(callBusy).Inc() }

// Panicked logs a panic.
func (o *Observer) Panicked(reason any) {
	o.limits.WithLabelValues("panic").Inc()
	o.b.panicked(reason)
}
