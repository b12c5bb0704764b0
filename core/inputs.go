// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// Inputs lists the parts of a request that a policy reads. The type omits path, method, host and
// addresses, because every policy reads them.
type Inputs struct {
	Headers []string // canonical names, sorted, without duplicates
	Attrs   []string // sorted, without duplicates
	Query   bool
}

// TraceHeader is the canonical name of the W3C header that carries the trace of a request.
const TraceHeader = "Traceparent"

// InputsOf returns what decisions by the policy can read from [policy.Attributes]. A front that
// delegates decisions to another process sends it only these values.
func InputsOf(p *policy.Policy) Inputs {
	var r Inputs
	if len(p.TrustedProxies) > 0 || p.TrustedHops > 0 {
		r.header(identify.ForwardedHeader)
	}
	if p.Traced {
		r.header(TraceHeader)
	}
	for i := range p.Identify {
		r.identify(&p.Identify[i])
	}
	for _, sources := range [...][]policy.Source{p.User, p.Tenant, p.Tier} {
		for _, s := range sources {
			r.source(s)
		}
	}
	for i := range p.Rules {
		if !p.Rules[i].Disabled {
			r.rule(&p.Rules[i])
		}
	}
	r.Headers, r.Attrs = slices.Compact(slim.SortedTexts(r.Headers)), slices.Compact(slim.SortedTexts(r.Attrs))
	return r
}

//go:noinline
func (r *Inputs) header(name string) { r.Headers = append(r.Headers, match.CanonicalHeader(name)) }

func (r *Inputs) attr(name string) { r.Attrs = append(r.Attrs, name) }

func (r *Inputs) identify(m *policy.Identify) {
	switch m.Kind {
	case policy.IdentifyHeader:
		r.header(m.Name)
	case policy.IdentifyAttr:
		r.attr(m.Name)
	case policy.IdentifyCookie:
		r.header("Cookie")
	case policy.IdentifyJWT, policy.IdentifyAPIKey:
		for _, place := range identify.NewCarriers(*m) {
			r.credential(place)
		}
	}
}

func (r *Inputs) credential(place policy.CredentialSource) {
	switch place.Kind {
	case policy.FromBearer:
		r.header("Authorization")
	case policy.FromHeader:
		r.header(place.Name)
	case policy.FromQuery:
		r.Query = true
	case policy.FromCookie:
		r.header("Cookie")
	}
}

func (r *Inputs) source(s policy.Source) {
	switch s.Kind {
	case policy.SourceAttr:
		r.attr(s.Name)
	case policy.SourceHeader:
		r.header(s.Name)
	}
}

func (r *Inputs) rule(rule *policy.Rule) {
	r.addMatch(&rule.Match)
	for _, d := range rule.Per {
		switch d.Kind {
		case policy.PerHeader:
			r.header(d.Name)
		case policy.PerAttr:
			r.attr(d.Name)
		}
	}
	for i := range rule.Cost {
		r.addMatch(&rule.Cost[i].Match)
		if name := rule.Cost[i].Header; name != "" {
			r.header(name)
		}
	}
}

func (r *Inputs) addMatch(m *policy.Match) {
	for i := range m.Header {
		r.header(m.Header[i].Name)
	}
	for i := range m.Attr {
		r.attr(m.Attr[i].Name)
	}
}
