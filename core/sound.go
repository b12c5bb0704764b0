// SPDX-License-Identifier: Apache-2.0

package core

// sound reports whether requests can be decided by the policy: that nothing in it is out of the range of what the code that
// decides knows. It is no judgement of what the policy says; that is the verifier's.
func (p *Policy) sound() bool {
	if len(p.Rules) > RulesMax || len(p.Identify) > IdentifyMax || p.TrustedHops < 0 ||
		p.Penalty != nil && p.Penalty.flaw() != "" {
		return false
	}
	for i := range p.Identify {
		if !p.Identify[i].sound() {
			return false
		}
	}
	for i := range p.Rules {
		if !p.Rules[i].sound() {
			return false
		}
	}
	return true
}

func (m *Identify) sound() bool {
	proven := m.Kind == IdentifyJWT || m.Kind == IdentifyAPIKey
	return m.Kind <= IdentifyAPIKey && proven == (m.Verifier != nil) &&
		m.IPv4Prefix >= 0 && m.IPv4Prefix <= 32 && m.IPv6Prefix >= 0 && m.IPv6Prefix <= 128
}

func (r *Rule) sound() bool {
	if r.Action > ActionThrottle || r.Shards < 0 || r.Shards > ShardsMax || len(r.Per) > DimensionsMax || !areLimits(r.Limits) ||
		r.CostAfter != nil && !isCost(r.CostAfter.Estimate) ||
		r.RetryAfter < 0 || r.RetryAfter > retryAfterMax || r.RetryJitter < 0 || r.RetryJitter > retryJitterMax {
		return false
	}
	for i := range r.Cost {
		if !isCost(r.Cost[i].N) {
			return false
		}
	}
	for _, d := range r.Per {
		if d.Kind > PerAttr {
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

func isCost(n int64) bool { return n >= 1 && n <= CountMax }

func areLimits(limits []Limit) bool {
	for i := range limits {
		if limits[i].algorithm == 0 {
			return false
		}
	}
	return len(limits) <= ChecksMax
}
