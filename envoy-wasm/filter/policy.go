// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// policy is one version of a policy, made ready for requests.
type policy struct {
	version string
	ruleset *core.Ruleset
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
		p.headers[strings.ToLower(name)] = i
	}
	p.ruleset, err = core.Assemble(source)
	return p, err
}
