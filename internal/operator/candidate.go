// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/fleet"
)

// Candidate is a policy that decides the requests of a share of the clients in place of another
// policy.
type Candidate struct {
	Policy
	// Decides reports whether the candidate decides the requests of a client.
	Decides func(who *policy.Identity) bool
	counts  fleet.Candidate
}

// CandidateOf returns the candidate of a version, or nil.
func CandidateOf(v *live.Version) *Candidate {
	published, admitted, denied, ok := v.Tried()
	if !ok {
		return nil
	}
	c := v.Candidate()
	return &Candidate{Policy: Policy{Ruleset: c.Ruleset, Document: c.Document, Verifiers: c.Verifiers()},
		Decides: func(who *policy.Identity) bool { return v.ChooseFor(who) == c },
		counts:  fleet.Candidate{Published: published, Admitted: admitted, Denied: denied}}
}

// Candidate.report returns the part of a node's record that is about the candidate, or nil.
func (c *Candidate) report() *fleet.Candidate {
	if c == nil {
		return nil
	}
	return &c.counts
}

// withCandidates returns the policies and their candidates.
func withCandidates(policies []Policy) (all []Policy) {
	for i := range policies {
		if all = append(all, policies[i]); policies[i].Candidate != nil {
			all = append(all, policies[i].Candidate.Policy)
		}
	}
	return all
}

// Policy.deciding returns the policies whose counters an operation on a client visits: usually only
// the policy that decides the client's requests. If that policy cannot be known, or if counters are
// reset, the method returns both the policy in force and its candidate.
func (p *Policy) deciding(c *Client, op counter.Op) []*Policy {
	if p.Candidate == nil {
		return []*Policy{p}
	}
	both := []*Policy{p, &p.Candidate.Policy}
	f, err := c.In(p)
	if op != counter.OpLook || err != nil || f.isUnknown("tier") || len(p.Document.User) > 0 && f.identity.User == "" {
		return both
	}
	if p.Candidate.Decides(&f.identity) {
		return both[1:]
	}
	return both[:1]
}
