// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package core

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// samplesMax bounds the number of sample requests that [Compile] tries for all rules and tiers. The
// number is bounded because each sample is compared with every rule if the rules cannot be indexed.
const samplesMax = 1_000

// findTooManyChecks returns a problem if tryRequests finds a request that needs more checks than
// one call of a store accepts.
func (rs *Ruleset) findTooManyChecks(p *policy.Policy) (found policy.Problems) {
	most := 1 // a penalty takes one check
	for _, index := range rs.enabled {
		r := &rs.rules[index]
		limits := len(r.limits)
		for _, set := range r.tiers {
			limits = max(limits, len(set.limits))
		}
		most += limits
	}
	if most <= counter.ChecksMax {
		return nil
	}
	rs.tryRequests(p, func(index int, w sampleRequest, tier string, plan *Plan) bool {
		if plan.denial == denialTooManyChecks {
			found = policy.Problems{w.tooManyChecks(policy.RuleAt(index), rs.rules[index].name, tier)}
		}
		return found == nil
	})
	return found
}

// Busiest searches for the request that needs the most checks under the policy p, from which the
// ruleset was compiled. Busiest returns the number of checks, and the request as text: `GET /x of a
// client of tier "gold"`. A request that needs more than [counter.ChecksMax] checks is denied, and
// [Compile] rejects a policy if it finds such a request. Busiest does not try all combinations of
// headers, so some request might need more checks than it returns.
func (rs *Ruleset) Busiest(p *policy.Policy) (checks int, request string) {
	rs.tryRequests(p, func(_ int, w sampleRequest, tier string, plan *Plan) bool {
		if n := len(plan.checks); n > checks {
			checks, request = n, w.requestText(tier)
		}
		return true
	})
	return checks, request
}

// tryRequests plans sample requests, and calls tried(...) for each of them until tried
// returns false. Rules alone do not show whether one request can match two of them. So tryRequests
// makes a sample request for each rule, or for evenly spaced rules if there are many. It tries the
// sample without a tier, and with each of the tiers of longTiers.
func (rs *Ruleset) tryRequests(p *policy.Policy, tried func(index int, w sampleRequest, tier string, plan *Plan) bool) {
	trial := *rs
	trial.disabled, trial.exempt, trial.block, trial.blocks = false, nil, nil, false
	trial.who.Fixed = new(policy.Identity)
	var plan Plan
	tiers := append(rs.longTiers(), "")
	for i := 0; i < len(rs.enabled); i += 1 + len(rs.enabled)*len(tiers)/samplesMax {
		index := int(rs.enabled[i])
		w := sampleRequest{&p.Rules[index].Match}
		for _, tier := range tiers {
			who := w.fullClient()
			if tier != "" && len(w.match.Tier) == 0 {
				who.Tier = tier
			}
			*trial.who.Fixed = who
			plan.Reset()
			plan.Add(&trial, w)
			if !tried(index, w, tier, &plan) {
				return
			}
		}
	}
}

// longTiers returns the tiers that have more limits under some rule than the rule itself has.
func (rs *Ruleset) longTiers() []string {
	long := map[string]bool{}
	for i := range rs.rules {
		for tier, set := range rs.rules[i].tiers {
			if len(set.limits) > len(rs.rules[i].limits) {
				long[tier] = true
			}
		}
	}
	return slim.SortedKeys(long)
}

// sampleRequest.requestText describes the request, for error messages.
func (w sampleRequest) requestText(tier string) string {
	text := w.Method() + " " + w.Path()
	if tier != "" {
		text += fmt.Sprintf(" of a client of tier %q", tier)
	}
	return text
}

// tooManyChecks returns the problem of the rule that the sample request was made for.
func (w sampleRequest) tooManyChecks(at, rule, tier string) policy.Problem {
	return policy.Problem{Path: at, Value: rule,
		Why: fmt.Sprintf("needs too many checks together with other rules: %s makes more than %d, the maximum "+
			"for one call of the store", w.requestText(tier), counter.ChecksMax),
		Remedy: "narrow some matches, or put rules that replace each other in a group"}
}

// sampleRequest is a request that satisfies the match of a rule.
type sampleRequest struct{ match *policy.Match }

func (w sampleRequest) Path() string {
	if len(w.match.Path) == 0 {
		return "/"
	}
	return strings.ReplaceAll(strings.ReplaceAll(w.match.Path[0], "**", "x"), "*", "x")
}

// fullClient returns a client with every property set, so that no rule is skipped for lack of one.
func (w sampleRequest) fullClient() policy.Identity {
	one := func(of []string) string {
		if len(of) == 0 {
			return "x"
		}
		return of[0]
	}
	return policy.Identity{Kind: "user", ID: one(w.match.User), User: one(w.match.User), APIKey: one(w.match.APIKey),
		Tier: one(w.match.Tier), Tenant: one(w.match.Tenant)}
}

func (w sampleRequest) Query() string       { return "" }
func (w sampleRequest) Remote() netip.Addr  { return w.Peer() }
func (w sampleRequest) Now() counter.Micros { return 0 }

func (w sampleRequest) Method() string {
	if len(w.match.Method) == 0 {
		return "GET"
	}
	return w.match.Method[0]
}

func (w sampleRequest) Host() string {
	if len(w.match.Host) == 0 {
		return "example.com"
	}
	return strings.Replace(w.match.Host[0], "*", "x", 1)
}

// Header returns a value for every header, so that no rule is skipped for lack of one.
func (w sampleRequest) Header(name string) (value string, ok bool) {
	for _, h := range w.match.Header {
		if slim.EqualASCII(h.Name, name) && len(h.Values) > 0 {
			return strings.ReplaceAll(h.Values[0], "*", "x"), true
		}
	}
	return "x", true
}

func (w sampleRequest) Peer() netip.Addr {
	if len(w.match.IP) == 0 {
		return netip.AddrFrom4([4]byte{192, 0, 2, 1})
	}
	return w.match.IP[0].Addr()
}

// Attr returns a value for every attribute, as Header does for headers.
func (w sampleRequest) Attr(name string) (value string, ok bool) {
	for _, a := range w.match.Attr {
		if a.Name == name && len(a.Values) > 0 {
			return strings.ReplaceAll(a.Values[0], "*", "x"), true
		}
	}
	return "x", true
}
