// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Deciding returns the ruleset that decided: the first that denied the request, or the one whose
// limit is shown. The result is nil if no rule applied. The ruleset is valid until Reset.
func (p *Plan) Deciding(d *Decision) *Ruleset {
	if i := p.decidingUse(d); i >= 0 {
		return p.uses[i].ruleset
	}
	return nil
}

// decidingUse returns the index of the use that made the decision, -1 if there is none.
func (p *Plan) decidingUse(d *Decision) int {
	same := -1
	for i := range p.uses {
		if p.outcomes[i].Outcome != d.Outcome {
			continue
		}
		if p.uses[i].rule.name == d.Rule {
			return i
		}
		if same < 0 {
			same = i
		}
	}
	return same
}

// Reported returns two properties of a decision for reports. The limit is the shown limit. If no
// limit is shown, the limit is nil, unless the request is denied: then it is the limit that denies,
// even if hidden from clients. The endpoint is the path pattern of the deciding rule that the path
// matches, or "". The limit and the endpoint remain valid after Reset.
func (p *Plan) Reported(d *Decision) (limit *counter.Limit, endpoint string) {
	if limit = d.Limit; limit == nil && d.Outcome == OutcomeDenied {
		if check := p.longestDenial(false); check >= 0 {
			limit = p.asked[check].limit.wholeLimit()
		}
	}
	if i := p.decidingUse(d); i >= 0 {
		if when := p.uses[i].rule.when; when != nil {
			endpoint, _ = when.Endpoint(&p.who.Request)
		}
	}
	return limit, endpoint
}

// endpointPatternsMax is how many path patterns of a rule [Plan.EndpointOf] compares with the path.
const endpointPatternsMax = 16

// EndpointOf returns the path pattern by which the rule of an outcome applies, as an index in
// [Ruleset.Endpoints]. The argument i is the index of the outcome in [Plan.Outcomes]. The result
// is -1 if the rule has no path, or if none of the first 16 patterns matches. A rule with a single
// pattern applies by that pattern. With several descriptors, the path is that of the last
// descriptor.
func (p *Plan) EndpointOf(i int) int {
	if when := p.uses[i].rule.when; when != nil && len(when.Patterns) > 0 {
		return when.EndpointIndex(&p.who.Request, endpointPatternsMax)
	}
	return -1
}

// Endpoints returns the path patterns of a rule, the most specific first, in canonical spelling.
func (rs *Ruleset) Endpoints(rule int) []string {
	if when := rs.rules[rule].when; when != nil {
		return when.Endpoints()
	}
	return nil
}

// Request returns the attributes of the request added last, or nil if no request was added. With
// several descriptors, the attributes are those of the last descriptor.
func (p *Plan) Request() policy.Attributes { return p.who.Request.Attrs }

// Peer returns the client's address as the policy added last reads it. The result is the zero Addr
// if the address is unknown.
func (p *Plan) Peer() netip.Addr { return p.who.Request.Peer }
