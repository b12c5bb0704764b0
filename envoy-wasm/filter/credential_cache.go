// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// Bounds of the cache of credentials. When a bound is reached, the cache is emptied, and the
// bridge's answers fill it again. Emptying it adds a few bytes to calls. No signature is checked
// again, as the bridge has a cache too.
const (
	verdictsMax     = 4096
	verdictBytesMax = 4 << 20
	rememberedMax   = counter.Minute // the bridge states 10 s
	// trustedFor is how long a cached verdict admits requests from leased units. The time counts
	// from the question to the bridge. After that, the filter calls the bridge again. Without that
	// call, the filter would not notice a revoked key as long as other requests renew the lease.
	// Under a policy with a directory, which may have the key, no decision uses a verdict for
	// longer than recordTrusted.
	trustedFor = counter.Second
)

// verdictCache caches the verdicts of the bridge for one way to identify. A verdictCache verifies
// nothing: an unknown credential counts as absent, and the request is decided again after the
// bridge has verified the credential.
type verdictCache struct {
	way      int
	filter   *Filter
	directed bool // the policy has a directory, which may have the credential
	verdicts map[string]verdict
	bytes    int
}

// verdict is the cached result for one credential.
type verdict struct {
	state       corepolicy.CredentialState
	identity    *corepolicy.Identity
	fingerprint uint64
	until       counter.Micros
	asked       counter.Micros // when the bridge was asked
	bytes       int            // the length of the credential
}

// verdictReply is the part of an answer about the validity of the request's credentials.
type verdictReply struct {
	plan  *core.Plan
	ways  []wire.Way
	until counter.Micros

	records string         // the records that no lookup has used yet
	asked   counter.Micros // when the bridge was asked
	short   bool           // whether a record is missing or cannot be read
}

// Verify implements [policy.Verifier].
func (r *verdictCache) Verify(credential string) (*corepolicy.Identity, corepolicy.CredentialState) {
	f := r.filter
	if f.bridgeVerdicts != nil {
		return r.takeVerdict(f.bridgeVerdicts, credential)
	}
	known, ok := r.verdicts[credential]
	f.dated = f.dated || r.directed && !(ok && isAhead(known.asked+recordTrusted, f.now, recordTrusted))
	if !ok || !isAhead(known.until, f.now, rememberedMax) {
		f.unsure = true
		return nil, corepolicy.CredentialAbsent
	}
	f.known += known.fingerprint
	f.stale = f.stale || !isAhead(known.asked+trustedFor, f.now, trustedFor)
	return known.identity, known.state
}

// takeVerdict returns and caches the verdict of the bridge on a credential. The bridge verifies the
// same credentials in the same order, so the position of a credential selects its verdict. One way
// can have several credentials with one verdict each. A credential that the bridge did not need to
// verify is unknown.
func (r *verdictCache) takeVerdict(h *verdictReply, credential string) (*corepolicy.Identity, corepolicy.CredentialState) {
	at := h.plan.CredentialsSeen()
	if at >= len(h.ways) || h.ways[at].Index != r.way {
		if old, ok := r.verdicts[credential]; ok {
			r.bytes -= old.bytes
			delete(r.verdicts, credential)
		}
		return nil, corepolicy.CredentialAbsent
	}
	v := r.keep(credential, &h.ways[at], h)
	r.filter.known += v.fingerprint
	return v.identity, v.state
}

// isComplete reports whether all verdicts of the bridge were for credentials of the request, and
// all records were for the request's clients.
func (h *verdictReply) isComplete() bool {
	used := h.plan.Credentials()
	return !h.short && h.records == "" && slices.EqualFunc(used, h.ways, func(c core.CredentialUse, w wire.Way) bool {
		return c.Method == w.Index && c.State == w.State
	})
}

func (r *verdictCache) keep(credential string, way *wire.Way, h *verdictReply) verdict {
	if len(r.verdicts) >= verdictsMax || r.bytes > verdictBytesMax || r.verdicts == nil {
		r.verdicts, r.bytes = make(map[string]verdict), 0
	}
	v := verdict{state: way.State, fingerprint: way.Fingerprint(), until: h.until, asked: h.asked, bytes: len(credential)}
	if way.State == corepolicy.CredentialValid {
		identity := way.Identity
		v.identity = &identity
	}
	if h.until <= r.filter.now { // the bridge had no verdict on this credential either
		return v
	}
	if _, again := r.verdicts[credential]; !again {
		r.bytes += v.bytes
	}
	r.verdicts[strings.Clone(credential)] = v // the plan decodes some credentials in its own memory
	return v
}
