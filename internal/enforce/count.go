// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/live"
)

// Count updates the metrics for the plan's request, for each policy version that decided it, and
// reports the decision as an event if the deciding policy requires it. Count counts the outcome of
// each rule, the state of each credential, and costs that could not be read from a trusted peer's
// header. After a call of [Enforcer.CountDenials], Count also counts the client of a denied
// request. After a call of [Enforcer.Measure], it counts what the client used and how long the
// decision took.
func (e *Enforcer) Count(plan *core.Plan, d *core.Decision, versions ...*live.Version) {
	e.outages.recordDecision(plan)
	e.countDenial(plan)
	if n := plan.UnreadableCosts(); n > 0 {
		e.metrics.Unreadable.Add(float64(n))
	}
	for _, v := range versions {
		v.Count(plan, d)
	}
	if e.events != nil {
		e.report(plan, d, versions)
	}
	if e.meter.On() {
		e.measure(plan)
		e.measureLatency(plan, versions)
	}
}
