// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// Bounds of what is remembered of credentials. Beyond them everything is forgotten and asked for again: the bridge
// remembers too, so that costs a few bytes more in a call and no signature check.
const (
	verdictsMax     = 4096
	verdictBytesMax = 4 << 20
)

// remembered is one way to identify, as the filter knows it: what the bridge said of credentials before. It verifies
// nothing: what it does not know counts as absent, and the request is decided again when the bridge has said it.
type remembered struct {
	way      int
	filter   *Filter
	verdicts map[string]verdict
	bytes    int
}

// verdict is what a credential is worth.
type verdict struct {
	state       core.CredentialState
	identity    *core.Identity
	fingerprint uint64
	until       core.Micros
}

// looked is a credential that the request under decision has shown.
type looked struct {
	way        *remembered
	credential string
}

// Verify implements [core.Verifier].
func (r *remembered) Verify(credential string) (*core.Identity, core.CredentialState) {
	f := r.filter
	f.looked = append(f.looked, looked{r, credential})
	known, ok := r.verdicts[credential]
	if !ok || known.until <= f.now {
		f.unsure = true
		return nil, core.CredentialAbsent
	}
	f.known += known.fingerprint
	return known.identity, known.state
}

// learn keeps what the bridge said of the credentials that a request has shown.
func (f *Filter) learn(shown []looked, v *wire.Verdict) {
	until := f.host.Now() + core.Micros(v.TTLMicros)
	for i := range v.Ways {
		way := &v.Ways[i]
		for _, l := range shown {
			if l.way.way == way.Index {
				l.way.keep(l.credential, way, until)
			}
		}
	}
}

func (r *remembered) keep(credential string, way *wire.Way, until core.Micros) {
	if len(r.verdicts) >= verdictsMax || r.bytes > verdictBytesMax || r.verdicts == nil {
		r.verdicts, r.bytes = make(map[string]verdict), 0
	}
	v := verdict{state: way.State, fingerprint: way.Fingerprint(), until: until}
	if way.State == core.CredentialValid {
		identity := way.Identity
		v.identity = &identity
	}
	r.verdicts[strings.Clone(credential)] = v
	r.bytes += len(credential)
}
