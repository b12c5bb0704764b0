// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"sync/atomic"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// trial is a candidate that decides the requests of a share of the clients in place of the version
// in force. Both versions refer to it.
type trial struct {
	present, candidate *Version
	share              int32 // how many of the core.PlacesAll places the candidate has
	salt               [16]byte
	// the requests that the candidate has decided
	admitted, denied atomic.Uint64
}

// CompleteAll calls complete(...), which may be nil, for a document and for its candidate.
func CompleteAll(d *policyfile.Document, complete func(*policyfile.Document) error) error {
	if complete == nil {
		return nil
	}
	for _, one := range d.All() {
		if err := complete(one); err != nil {
			return err
		}
	}
	return nil
}

// Choose returns the version that decides the request a. This is the candidate if it decides for a
// share of the clients and the request's client is in this share, and otherwise the version in
// force. It may be called for either of the two versions, and before the request is added to the
// plan. If the plan's Unresolved method then returns names, the result is final only after these
// clients have been read.
func (v *Version) Choose(p *core.Plan, a policy.Attributes) *Version {
	t := v.trial
	if t == nil {
		return v
	}
	return t.versionAt(p.Place(t.present.Ruleset, a, &t.salt))
}

// ChooseFor is like Choose for a client whose identity is known.
func (v *Version) ChooseFor(who *policy.Identity) *Version {
	t := v.trial
	if t == nil {
		return v
	}
	return t.versionAt(core.PlaceOf(who, &t.salt))
}

// versionAt returns the version that decides the requests of the client at a place.
func (t *trial) versionAt(place int32) *Version {
	if place < t.share {
		return t.candidate
	}
	return t.present
}

// Add adds a request to a plan, under the version that Choose returns. It returns that version.
func (v *Version) Add(p *core.Plan, a policy.Attributes) *Version {
	v = v.Choose(p, a)
	p.Add(v.Ruleset, a)
	return v
}

// Candidate returns the version that decides the requests of a share of the clients in place of
// this one, or nil.
func (v *Version) Candidate() *Version {
	if v.trial == nil || v.trial.candidate == v {
		return nil
	}
	return v.trial.candidate
}

// Tried returns the published version of the candidate, and how many requests the candidate has
// admitted and denied. The result ok is false if there is no candidate.
func (v *Version) Tried() (published string, admitted, denied uint64, ok bool) {
	c := v.Candidate()
	if c == nil {
		return "", 0, 0, false
	}
	return c.Document.Published(), v.trial.admitted.Load(), v.trial.denied.Load(), true
}

// trial.attach makes the version in force and its candidate refer to the trial, which may be nil.
func (t *trial) attach(present *Version) {
	if t != nil {
		t.present = present
		present.trial, t.candidate.trial = t, t
	}
}

// trial.count counts a decision if the version is the candidate. A request that another policy
// denied does not count.
func (t *trial) count(v *Version, plan *core.Plan, d *core.Decision) {
	switch {
	case v != t.candidate:
	case !d.Denied():
		t.admitted.Add(1)
	case plan.Deciding(d) == v.Ruleset:
		t.denied.Add(1)
	}
}

// Version.isOf reports whether the version was compiled from this document and its candidate.
func (v *Version) isOf(d *policyfile.Document) bool {
	if d.Version() != v.ID {
		return false
	}
	c, t := d.Candidate(), v.trial
	if c == nil || t == nil {
		return c == nil && t == nil
	}
	return c.Share == t.share && c.Salt == t.salt && c.Document.Version() == t.candidate.ID
}

// Version.close closes the verifiers of the version and of its candidate. Requests under way
// continue to use their last keys.
func (v *Version) close() error {
	err := v.verifiers.close()
	if c := v.Candidate(); c != nil {
		err = errors.Join(err, c.verifiers.close())
	}
	return err
}
