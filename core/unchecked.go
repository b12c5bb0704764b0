// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/policy"

// limitsSetter is a verifier that can return a client's own limits.
type limitsSetter interface{ SetsLimits() bool }

// dependsOnClient reports whether decisions depend on a client's own limits, or on a user, tenant,
// tier or API key that a rule or a list names.
func dependsOnClient(p *policy.Policy) bool {
	for i := range p.Identify {
		if v, ok := p.Identify[i].Verifier.(limitsSetter); ok && v.SetsLimits() {
			return true
		}
	}
	for _, list := range [...][]policy.Listed{p.Exempt, p.Block} {
		for i := range list {
			if l := &list[i]; len(l.User)+len(l.APIKey)+len(l.Tier)+len(l.Tenant) > 0 {
				return true
			}
		}
	}
	for i := range p.Rules {
		if r := &p.Rules[i]; !r.Disabled && ruleDependsOnClient(r) {
			return true
		}
	}
	return false
}

func ruleDependsOnClient(r *policy.Rule) bool {
	if len(r.Tiers) > 0 || namesClient(&r.Match) {
		return true
	}
	for i := range r.Cost {
		if namesClient(&r.Cost[i].Match) {
			return true
		}
	}
	for i := range r.Per {
		switch r.Per[i].Kind {
		case policy.PerUser, policy.PerAPIKey, policy.PerTenant, policy.PerTier:
			return true
		}
	}
	return false
}

func namesClient(m *policy.Match) bool {
	return len(m.Tier)+len(m.User)+len(m.APIKey)+len(m.Tenant) > 0
}

// isUnchecked reports whether the client of the request could not be determined for lack of time.
// Either its records are required but not read, or a verifier had no time for a credential under a
// policy that depends on the client. The request is then denied as in an overload, because its
// rules are unknown. If it were decided like one without a credential, a client could use up the
// time with invalid tokens from its address, so that its own valid token is ignored.
func (p *Plan) isUnchecked(rs *Ruleset) bool {
	if p.records.required && len(p.records.unresolved) > 0 {
		return true
	}
	if !rs.dependsOnClient && p.records.directory == nil {
		return false
	}
	for i := range p.credentials {
		if c := &p.credentials[i]; c.Unchecked && c.Ruleset == rs {
			return true
		}
	}
	return false
}

// Unchecked reports whether the request is denied because there was no time to verify its
// credential or to read its client's records.
func (p *Plan) Unchecked() bool { return p.denial == denialUnchecked }
