// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// policy is one version of a policy, made ready for requests.
type policy struct {
	version string
	ruleset *core.Ruleset
	anybody *core.Ruleset // see anybodys; nil where that makes no difference
	reads   core.Reads
	headers map[string]int // the index in reads of a header, by its name in lower case
	ways    []*remembered  // of identify, those that the bridge verifies; nil for others
}

// load makes a compact policy ready. What was remembered of credentials stays where the ways of identifying are as many:
// a policy that identifies otherwise has another version, and verdicts are asked for anew when the bridge differs.
func (f *Filter) load(compact []byte) (*policy, error) {
	source, version, err := core.ReadCompact(compact)
	if err != nil {
		return nil, err
	}
	p := &policy{version: version, reads: source.Reads(), headers: map[string]int{}}
	p.ways = make([]*remembered, len(source.Identify))
	for i := range source.Identify {
		way := &source.Identify[i]
		if way.Kind == core.IdentifyJWT || way.Kind == core.IdentifyAPIKey {
			p.ways[i] = &remembered{way: i, filter: f}
			way.Verifier = p.ways[i]
		}
	}
	if max(len(p.reads.Headers), len(p.reads.Attrs)) > wire.ValuesMax {
		return nil, errors.New("it reads more than 256 headers, or more than 256 attributes, of a request")
	}
	for i, name := range p.reads.Headers {
		p.headers[core.LowerASCII(name)] = i
	}
	if p.ruleset, err = core.Assemble(source); err != nil {
		return nil, err
	}
	if rules, denies := anybodys(source); denies {
		source.Rules = rules
		p.anybody, err = core.Assemble(source)
	}
	return p, err
}

// anybodys returns the rules that a request may be under whose client is not known, because the bridge cannot be asked:
// those for some clients are for it as well, but those that block or allow some. It reports whether that can make a
// difference: where on_error allows, it makes none.
func anybodys(source core.Policy) (rules []core.Rule, denies bool) {
	denies = source.OnError == core.OnErrorDeny
	var some bool
	for _, r := range source.Rules {
		m := &r.Match
		if len(m.Tier)+len(m.User)+len(m.APIKey)+len(m.Tenant) > 0 {
			some = true
			m.Tier, m.User, m.APIKey, m.Tenant = nil, nil, nil, nil
			r.Disabled = r.Disabled || r.Action == core.ActionBlock || r.Action == core.ActionAllow
		}
		denies = denies || r.OnError == core.OnErrorDeny
		rules = append(rules, r)
	}
	return rules, some && denies
}
