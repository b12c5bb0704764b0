// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// policy is one version of a policy, compiled for requests.
type policy struct {
	version string
	ruleset *core.Ruleset
	anybody *core.Ruleset // the rules for clients whose credentials cannot be verified (see rulesForUnverified); nil if they decide in the same way as ruleset
	reads   exchange.Reads
	// for each entry of identify, its cache of verdicts, or nil if it needs
	// none
	ways   []*verdictCache
	inputs uint64 // the hash of reads
	// directory holds the records of clients; nil for a policy without a directory.
	directory *directory
}

// Filter.load compiles a compact policy. The result has neither verdicts on credentials nor
// records of clients at first. The filter asks the bridge for them again, even if the policy that
// was in force before identifies clients in the same ways.
func (f *Filter) load(coded []byte) (*policy, error) {
	source, version, err := compact.ReadPolicy(coded)
	if err != nil {
		return nil, err
	}
	p := &policy{version: version, reads: exchange.ReadsOf(core.InputsOf(&source))}
	p.ways = make([]*verdictCache, len(source.Identify))
	for i := range source.Identify {
		way := &source.Identify[i]
		if way.Kind == corepolicy.IdentifyJWT || way.Kind == corepolicy.IdentifyAPIKey {
			p.ways[i] = &verdictCache{way: i, filter: f, directed: source.Directory}
			way.Verifier = p.ways[i]
		}
	}
	if source.Directory {
		p.directory = &directory{filter: f, key: newHashKey(), known: make([]knownRecord, recordsKept)}
	}
	if max(len(p.reads.Headers), len(p.reads.Attrs)) > wire.ValuesMax {
		return nil, slim.NewError("it reads more than 256 headers, or more than 256 attributes, of a request")
	}
	if p.reads.Query {
		p.inputs++
	}
	for _, names := range [...][]string{p.reads.Headers, p.reads.Attrs} {
		for _, name := range names {
			p.inputs = hash(p.inputs+1, name)
		}
		p.inputs++
	}
	if p.ruleset, err = core.Assemble(source); err != nil {
		return nil, err
	}
	if rules, denies := rulesForUnverified(source); denies {
		source.Rules = rules
		p.anybody, err = core.Assemble(source)
	}
	return p, err
}

// rulesForUnverified returns the rules that might apply to a client whose credentials the bridge
// cannot verify. The result includes the rules for particular clients, except those that block or
// allow clients. The result named denies reports whether these rules can decide differently from
// the policy. These rules can do so if the policy has rules for particular clients, and on_error is
// deny in the policy or in one of its rules.
func rulesForUnverified(source corepolicy.Policy) (rules []corepolicy.Rule, denies bool) {
	denies = source.OnError == counter.OnErrorDeny
	var some bool
	for _, r := range source.Rules {
		m := &r.Match
		if len(m.Tier)+len(m.User)+len(m.APIKey)+len(m.Tenant) > 0 {
			some = true
			m.Tier, m.User, m.APIKey, m.Tenant = nil, nil, nil, nil
			r.Disabled = r.Disabled || r.Action == corepolicy.ActionBlock || r.Action == corepolicy.ActionAllow
		}
		denies = denies || r.OnError == counter.OnErrorDeny
		rules = append(rules, r)
	}
	return rules, some && denies
}
