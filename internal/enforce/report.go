// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"math/rand/v2"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/events"
)

// Report makes the enforcer pass the decisions that policies report to a log of events. Report must
// be called before the first request. A nil log reports nothing.
func (e *Enforcer) Report(log *events.Log) {
	e.events = log
	e.reportOutages()
}

// Enforcer.report passes the decision about the plan's request to the log of events.
func (e *Enforcer) report(plan *core.Plan, d *core.Decision, versions []*live.Version) {
	for _, v := range versions {
		if v.Reports() {
			e.events.Want()
			e.reportBy(plan, d, versions)
			return
		}
	}
}

// reportBy reports the decision if the rule or the policy that made it requires a report.
func (e *Enforcer) reportBy(plan *core.Plan, d *core.Decision, versions []*live.Version) {
	v, denied := decidingVersion(plan, d, versions), d.Denied()
	settings := v.EventsOf(d.Rule)
	switch {
	case d.Outcome == core.OutcomeNone:
	case denied && !settings.Denied:
	case !denied && (settings.AdmittedPPM == 0 || rand.Int64N(policy.EventsPPMMax) >= settings.AdmittedPPM):
	default:
		e.handOver(plan, d, v, 1, true)
	}
}

// ReportDenials reports n denials like that of the plan's request, which another process decided.
// The argument named dropped is the number of further denials, which that process has not kept;
// they are only counted. These denials are not counted in metrics.
func (e *Enforcer) ReportDenials(plan *core.Plan, d *core.Decision, v *live.Version, n, dropped uint64) {
	e.measureDenials(plan, d, v, n, dropped)
	if e.events == nil || !v.ReportsDenials() {
		return
	}
	e.events.Drop(dropped)
	if v.EventsOf(d.Rule).Denied {
		e.handOver(plan, d, v, n, false)
	}
}

// handOver passes n equal decisions to the log of events. The argument here is true if this process
// made the plan's decision. Only then are the wait and the latency of the request known.
func (e *Enforcer) handOver(plan *core.Plan, d *core.Decision, v *live.Version, n uint64, here bool) {
	k := events.Key{Policy: v.Document.Name, Version: v.ID, Rule: ruleOf(plan, d), Decision: d.Outcome.String(), Kind: d.Client.Kind,
		Client: d.Client.ID}
	if e.events.Count(&k, n) {
		return
	}
	limit, endpoint := plan.Reported(d)
	settings := v.EventsOf(d.Rule)
	details := events.Details{Settings: settings, Denied: d.Denied(), Status: d.Status, Limit: limit, Address: plan.Peer(),
		Tier: d.Client.Tier, Path: endpoint}
	if here {
		if d.RetryAfter != counter.Never {
			details.RetryAfter = d.RetryAfter
		}
		details.Latency = latencyOf(plan)
	}
	if request := plan.Request(); request != nil {
		details.Method = request.Method()
		switch settings.Path {
		case policy.PathFull:
			details.Path = request.Path()
		case policy.PathNone:
			details.Path = ""
		}
	}
	e.events.Add(&k, &details, n)
}

// ruleOf returns the rule that made the decision, or the entry of the list "block".
func ruleOf(plan *core.Plan, d *core.Decision) string {
	if d.Rule == "" && d.Denied() {
		return plan.BlockedBy()
	}
	return d.Rule
}

// decidingVersion returns the version whose rules made the decision. For a limit that is in no
// version, such as a limit that Envoy sends, the result is versions[0].
func decidingVersion(plan *core.Plan, d *core.Decision, versions []*live.Version) *live.Version {
	if len(versions) > 1 {
		rs := plan.Deciding(d)
		for _, v := range versions {
			if v.Ruleset == rs {
				return v
			}
		}
	}
	return versions[0]
}
