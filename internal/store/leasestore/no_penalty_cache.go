// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"

	"github.com/penstock/penstock/core/counter"
)

// AbsenceMax is how long the absence of a penalty is remembered, counted from when the call was
// sent. AbsenceMax bounds the time until a penalty that another process imposes applies to held
// units. The time is short because in the meantime held units admit requests that the store would
// have denied. The checks cost at most ten calls a second, which are few for a hot counter.
const AbsenceMax = 200 * counter.Millisecond

// absence records that a client has no penalty.
type absence struct {
	looking bool // whether a call that can prolong it is under way
}

// absences remembers which clients have no penalty.
type absences struct{ cache[absence] }

func newAbsences(most int) *absences { return &absences{*newCache[absence](most)} }

// absences.known reports whether the absence of a penalty is known. The result named look reports
// whether the caller must check again, because half of the time has passed and no other request is
// checking.
func (t *absences) known(now counter.Micros, id identity) (absent, look bool) {
	set, mu := t.lock(id)
	defer mu.Unlock()
	w := find(set, id, now)
	if w == nil {
		return false, false
	}
	look = !w.value.looking && w.until-now <= AbsenceMax/2
	w.value.looking = w.value.looking || look
	return true, look
}

// absences.learn records the result of checking for a penalty. If the argument named until is
// positive, there was no penalty, and the method remembers this until that instant. If the argument
// is 0, there is a penalty. If it is negative, the result is unknown. In all cases the check is no
// longer under way.
func (t *absences) learn(id identity, until counter.Micros) {
	set, mu := t.lock(id)
	defer mu.Unlock()
	w, known := place(set, id)
	switch {
	case known:
		w.value.looking = false
		if until == 0 || until > w.until {
			w.until = until
		}
	case until > 0:
		*w = slot[absence]{id: id, until: until}
	}
}

// attempt.unpenalized reports whether only checks of penalties remain and all of these penalties
// are known to be absent. If they are, the method fills in their results.
func (a *attempt) unpenalized() bool {
	if a.inHand == 0 || a.kind != takes {
		return false
	}
	for i := range a.checks {
		if c := &a.checks[i]; a.parts[i].role != reserved && (c.Penalty == nil || c.Op != counter.OpTake) {
			return false
		}
	}
	var at counter.Micros
	for i := range a.checks {
		if a.parts[i].role == reserved {
			at = a.results[i].At
			continue
		}
		id := a.store.identify(a.checks[i].Key)
		absent, look := a.store.absences.known(a.store.now(), id)
		if look {
			a.store.look(id, &a.checks[i])
		}
		if !absent {
			return false
		}
	}
	for i := range a.checks {
		if a.parts[i].role != reserved {
			a.results[i] = counter.Result{At: at}
		}
	}
	return true
}

// Store.look checks in the background whether there is a penalty now.
func (s *Store) look(id identity, c *counter.Check) {
	checks := []counter.Check{*c}
	checks[0].Key = append([]byte(nil), c.Key...)
	if !s.start(func() {
		defer func() { _ = recover() }()
		defer s.absences.learn(id, -1)
		results, sent := make([]counter.Result, 1), s.now()
		s.counts.calls.Add(1)
		err := s.inner.Take(context.Background(), checks, results)
		s.learnAbsences(sent, true, checks, results, err)
		s.learn(sent, takes, checks, results, err)
	}) {
		s.absences.learn(id, -1)
	}
}

// learnAbsences remembers clients without a penalty if the argument named useful is true. It
// forgets clients that have a penalty.
func (s *Store) learnAbsences(sent counter.Micros, useful bool, checks []counter.Check, results []counter.Result, err error) {
	for i := range checks {
		switch {
		case checks[i].Penalty == nil || err != nil:
		case results[i].Denied:
			s.absences.learn(s.identify(checks[i].Key), 0)
		case useful && checks[i].Op == counter.OpTake:
			s.absences.learn(s.identify(checks[i].Key), sent+AbsenceMax)
		}
	}
}
