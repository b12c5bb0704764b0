// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"math"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/meter"
)

// Measure makes the enforcer count the usage of each client. Measure must be called before the
// first request. A nil meter counts nothing.
func (e *Enforcer) Measure(m *meter.Meter) { e.meter = m }

// Enforcer.measure counts the units and requests of the plan's client under each rule.
func (e *Enforcer) measure(plan *core.Plan) {
	client := plan.Identity()
	outcomes := plan.Outcomes()
	for i := range outcomes {
		one := &outcomes[i]
		k := meter.Key{Policy: one.Ruleset.Name(), Tier: client.Tier, Kind: client.Kind, Client: client.ID, Known: plan.Known()}
		if one.Index >= 0 {
			k.Rule = one.Ruleset.RuleName(one.Index)
		}
		switch {
		case metrics.Admits(one.Outcome):
			e.meter.Count(&k, meter.Sum{Admitted: 1, Units: plan.Units(i)})
		case metrics.Denies(one.Outcome):
			e.meter.Count(&k, meter.Sum{Denied: 1})
		}
	}
}

// beginReporter is implemented by attributes that know the time at which the process began to
// decide their request. Began returns that time, or 0 if it is unknown.
type beginReporter interface{ Began() counter.Micros }

// latencyOf returns the time from the beginning of the plan's request until now, at least 1 µs. It
// returns 0 if the beginning is not known.
func latencyOf(plan *core.Plan) counter.Micros {
	request, ok := plan.Request().(beginReporter)
	if !ok || request.Began() == 0 {
		return 0
	}
	return max(1, counter.Micros(time.Now().UnixMicro())-request.Began())
}

// measureLatency counts the time from the beginning of the request until now under each rule. A
// request whose beginning is not known has no latency.
func (e *Enforcer) measureLatency(plan *core.Plan, versions []*live.Version) {
	micros := int64(latencyOf(plan))
	if micros == 0 {
		return
	}
	outcomes := plan.Outcomes()
	for i := range outcomes {
		one := &outcomes[i]
		denied := metrics.Denies(one.Outcome)
		if !denied && !metrics.Admits(one.Outcome) {
			continue
		}
		k := meter.LatencyKey{Policy: one.Ruleset.Name()}
		if one.Index >= 0 {
			k.Rule = one.Ruleset.RuleName(one.Index)
		}
		for _, v := range versions {
			if label, ok := v.Endpoints.Label(plan, i); ok {
				k.Endpoint = label
			}
		}
		e.meter.CountLatency(&k, micros, denied)
	}
}

// Client is a client whose settlement is to be measured. A Client shares no memory with the plan.
type Client struct {
	Kind, ID, Tier string
	Known          bool // whether it has a record
}

// ClientOf returns the client of a plan; the zero Client if usage is not counted.
func (e *Enforcer) ClientOf(plan *core.Plan) Client {
	if !e.meter.On() {
		return Client{}
	}
	of := plan.Identity()
	return Client{strings.Clone(of.Kind), strings.Clone(of.ID), strings.Clone(of.Tier), plan.Known()}
}

// MeasureSettled corrects the units of a client by the settlement of its response. MeasureSettled
// must be called before the settlement's checks are made.
func (e *Enforcer) MeasureSettled(s *core.Settlement, a core.Answer, of *Client) {
	if !e.meter.On() {
		return
	}
	s.Corrections(a, func(rs *core.Ruleset, rule int, units int64) {
		e.measureCorrection(&Correction{rs, rule, units}, of)
	})
}

// Correction is the amount by which a response changes the units of its request under one rule.
type Correction struct {
	Ruleset *core.Ruleset
	Rule    int // the index in the ruleset
	Units   int64
}

// AppendCorrections appends to dst how the settlement of a response corrects the units of its
// request, if usage is counted. AppendCorrections must be called before the settlement's checks are
// made.
func (e *Enforcer) AppendCorrections(dst []Correction, s *core.Settlement, a core.Answer) []Correction {
	if !e.meter.On() {
		return dst
	}
	s.Corrections(a, func(rs *core.Ruleset, rule int, units int64) { dst = append(dst, Correction{rs, rule, units}) })
	return dst
}

// MeasureCorrections corrects the units of a client.
func (e *Enforcer) MeasureCorrections(all []Correction, of *Client) {
	for i := range all {
		e.measureCorrection(&all[i], of)
	}
}

func (e *Enforcer) measureCorrection(c *Correction, of *Client) {
	e.meter.Count(&meter.Key{Policy: c.Ruleset.Name(), Rule: c.Ruleset.RuleName(c.Rule), Tier: of.Tier, Kind: of.Kind, Client: of.ID,
		Known: of.Known}, meter.Sum{Units: c.Units})
}

// MeasureAdmissions counts n requests like that of the plan, which another process admitted by a
// version of the policy. If the plan's client is not certain, the argument named is false, and the
// requests are counted without a client. If the plan does not admit the request, because its client
// has been blocked since, the requests are counted for the policy itself.
func (e *Enforcer) MeasureAdmissions(plan *core.Plan, v *live.Version, n uint64, named bool) {
	if !e.meter.On() {
		return
	}
	k := meter.Key{}
	if client := plan.Identity(); named {
		k = meter.Key{Tier: client.Tier, Kind: client.Kind, Client: client.ID, Known: plan.Known()}
	}
	k.Policy = v.Ruleset.Name()
	outcomes, admitted := plan.Outcomes(), false
	for i := range outcomes {
		one := &outcomes[i]
		if !metrics.Admits(one.Outcome) {
			continue
		}
		k.Rule, admitted = "", true
		if one.Index >= 0 {
			k.Rule = one.Ruleset.RuleName(one.Index)
		}
		units := plan.Units(i)
		if units > math.MaxInt64/int64(max(1, n)) { // the other process is mistaken, and the product would overflow
			units = 0
		}
		e.meter.Count(&k, meter.Sum{Admitted: n, Units: int64(n) * units})
	}
	if !admitted {
		e.meter.Count(&k, meter.Sum{Admitted: n})
	}
}

// measureDenials counts n denials that another process decided. The argument named dropped is the
// number of further denials, whose clients that process has not kept.
func (e *Enforcer) measureDenials(plan *core.Plan, d *core.Decision, v *live.Version, n, dropped uint64) {
	if !e.meter.On() {
		return
	}
	client := plan.Identity()
	k := meter.Key{Policy: v.Ruleset.Name(), Rule: d.Rule, Tier: client.Tier, Kind: client.Kind, Client: client.ID, Known: plan.Known()}
	e.meter.Count(&k, meter.Sum{Denied: n})
	if dropped > 0 {
		e.meter.Count(&meter.Key{Policy: k.Policy}, meter.Sum{Denied: dropped})
	}
}
