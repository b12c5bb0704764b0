// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// Bounds of what is remembered of credentials. Beyond them everything is forgotten and asked for again: the bridge
// remembers too, so that costs a few bytes more in a call and no signature check.
const (
	verdictsMax     = 4096
	verdictBytesMax = 4 << 20
	rememberedMax   = core.Minute // the bridge says 10 s
	// trustedFor is how long requests are admitted from the hand by what the bridge said of a credential. Then it is asked again,
	// since nobody else would notice that a key was taken back while others keep the hand full.
	trustedFor = core.Second
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
	heard       core.Micros
	bytes       int // of the credential
}

// hearing is the request that is decided again, by what the bridge says its credentials are worth.
type hearing struct {
	plan  *core.Plan
	ways  []wire.Way
	until core.Micros
}

// Verify implements [core.Verifier].
func (r *remembered) Verify(credential string) (*core.Identity, core.CredentialState) {
	f := r.filter
	if f.hears != nil {
		return r.hear(f.hears, credential)
	}
	known, ok := r.verdicts[credential]
	if !ok || !ahead(known.until, f.now, rememberedMax) {
		f.unsure = true
		return nil, core.CredentialAbsent
	}
	f.known += known.fingerprint
	f.stale = f.stale || !ahead(known.heard+trustedFor, f.now, trustedFor)
	return known.identity, known.state
}

// hear takes over what the bridge has said of a credential. The bridge looks at the same ones in the same order, so that as
// many have been looked at before: one way may have several, and each has a verdict of its own. One that the bridge had no
// need to look at is not known.
func (r *remembered) hear(h *hearing, credential string) (*core.Identity, core.CredentialState) {
	at := len(h.plan.Credentials())
	if at >= len(h.ways) || h.ways[at].Index != r.way {
		if old, ok := r.verdicts[credential]; ok {
			r.bytes -= old.bytes
			delete(r.verdicts, credential)
		}
		return nil, core.CredentialAbsent
	}
	v := r.keep(credential, &h.ways[at], h.until)
	r.filter.known += v.fingerprint
	return v.identity, v.state
}

// heard reports whether all that the bridge said was about the credentials that the request shows.
func (h *hearing) heard() bool {
	used := h.plan.Credentials()
	return slices.EqualFunc(used, h.ways, func(c core.CredentialUse, w wire.Way) bool {
		return c.Method == w.Index && c.State == w.State
	})
}

func (r *remembered) keep(credential string, way *wire.Way, until core.Micros) verdict {
	if len(r.verdicts) >= verdictsMax || r.bytes > verdictBytesMax || r.verdicts == nil {
		r.verdicts, r.bytes = make(map[string]verdict), 0
	}
	v := verdict{state: way.State, fingerprint: way.Fingerprint(), until: until, heard: r.filter.now, bytes: len(credential)}
	if way.State == core.CredentialValid {
		identity := way.Identity
		v.identity = &identity
	}
	if until <= r.filter.now { // the bridge does not know it either
		return v
	}
	if _, again := r.verdicts[credential]; !again {
		r.bytes += v.bytes
	}
	r.verdicts[strings.Clone(credential)] = v // the plan decodes some in memory of its own
	return v
}
