// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// wellFormed reports whether requests can be decided by the policy: every enum and number has a
// value that the decision code handles. wellFormed does not check that the policy makes sense;
// validation does.
func wellFormed(p *policy.Policy) bool {
	if len(p.Rules) > policy.RulesMax || len(p.Identify) > policy.IdentifyMax || p.TrustedHops < 0 ||
		p.Penalty != nil && p.Penalty.Flaw() != "" {
		return false
	}
	for i := range p.Identify {
		if !identifyWellFormed(&p.Identify[i]) {
			return false
		}
	}
	for i := range p.Rules {
		if !ruleWellFormed(&p.Rules[i]) {
			return false
		}
	}
	return true
}

func identifyWellFormed(m *policy.Identify) bool {
	proven := m.Kind == policy.IdentifyJWT || m.Kind == policy.IdentifyAPIKey
	return m.Kind <= policy.IdentifyAPIKey && proven == (m.Verifier != nil) &&
		m.IPv4Prefix >= 0 && m.IPv4Prefix <= 32 && m.IPv6Prefix >= 0 && m.IPv6Prefix <= 128
}

func ruleWellFormed(r *policy.Rule) bool {
	if r.Action > policy.ActionThrottle || r.Shards < 0 || r.Shards > counter.ShardsMax || len(r.Per) > policy.DimensionsMax || !areLimits(r.Limits) ||
		r.CostAfter != nil && !isCost(r.CostAfter.Estimate) ||
		r.RetryAfter < 0 || r.RetryAfter > policy.RetryAfterMax || r.RetryJitter < 0 || r.RetryJitter > policy.RetryJitterMax {
		return false
	}
	for i := range r.Cost {
		if !isCost(r.Cost[i].N) {
			return false
		}
	}
	for _, d := range r.Per {
		if d.Kind > policy.PerAttr {
			return false
		}
	}
	for _, set := range r.Tiers {
		if !areLimits(set.Limits) {
			return false
		}
	}
	return true
}

func isCost(n int64) bool { return n >= 1 && n <= counter.CountMax }

func areLimits(limits []counter.Limit) bool {
	for i := range limits {
		if limits[i].Algorithm() == 0 {
			return false
		}
	}
	return len(limits) <= counter.ChecksMax
}
