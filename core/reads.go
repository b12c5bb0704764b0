// SPDX-License-Identifier: Apache-2.0

package core

import "slices"

// Reads is what a policy looks at in a request, beside its path, method, host and addresses, which every policy does.
type Reads struct {
	Headers []string // canonical names, sorted, each once
	Attrs   []string // sorted, each once
	Query   bool
}

// Reads returns what deciding by the policy can ask of [Attributes], so that a front which sends requests elsewhere to be
// decided sends that and no more.
func (p *Policy) Reads() Reads {
	var r Reads
	if len(p.TrustedProxies) > 0 || p.TrustedHops > 0 {
		r.header(forwardedHeader)
	}
	for i := range p.Identify {
		r.identify(&p.Identify[i])
	}
	for _, sources := range [...][]Source{p.User, p.Tenant, p.Tier} {
		for _, s := range sources {
			r.source(s)
		}
	}
	for i := range p.Rules {
		if !p.Rules[i].Disabled {
			r.rule(&p.Rules[i])
		}
	}
	r.Headers, r.Attrs = slices.Compact(sortedTexts(r.Headers)), slices.Compact(sortedTexts(r.Attrs))
	return r
}

//go:noinline
func (r *Reads) header(name string) { r.Headers = append(r.Headers, canonicalHeader(name)) }

func (r *Reads) attr(name string) { r.Attrs = append(r.Attrs, name) }

func (r *Reads) identify(m *Identify) {
	switch m.Kind {
	case IdentifyHeader:
		r.header(m.Name)
	case IdentifyAttr:
		r.attr(m.Name)
	case IdentifyCookie:
		r.header("Cookie")
	case IdentifyJWT, IdentifyAPIKey:
		for _, place := range newCarriers(*m) {
			r.credential(place)
		}
	}
}

func (r *Reads) credential(place CredentialSource) {
	switch place.Kind {
	case FromBearer:
		r.header("Authorization")
	case FromHeader:
		r.header(place.Name)
	case FromQuery:
		r.Query = true
	case FromCookie:
		r.header("Cookie")
	}
}

func (r *Reads) source(s Source) {
	switch s.Kind {
	case SourceAttr:
		r.attr(s.Name)
	case SourceHeader:
		r.header(s.Name)
	}
}

func (r *Reads) rule(rule *Rule) {
	r.match(&rule.Match)
	for _, d := range rule.Per {
		switch d.Kind {
		case PerHeader:
			r.header(d.Name)
		case PerAttr:
			r.attr(d.Name)
		}
	}
	for i := range rule.Cost {
		r.match(&rule.Cost[i].Match)
		if name := rule.Cost[i].Header; name != "" {
			r.header(name)
		}
	}
}

func (r *Reads) match(m *Match) {
	for i := range m.Header {
		r.header(m.Header[i].Name)
	}
	for i := range m.Attr {
		r.attr(m.Attr[i].Name)
	}
}
