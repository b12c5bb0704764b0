// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync"

	"github.com/penstock/penstock/core"
)

// AbsenceMax is for how long it is remembered that a client has no penalty, from when that was asked: one that is imposed through
// another process refuses no later than that what is admitted from the hand here. It is short, since it is the one thing that is
// admitted without asking and might have been refused; and five looks a second are few beside a hot counter.
const AbsenceMax = 200 * core.Millisecond

// absence says that there was no penalty.
type absence struct {
	id      identity
	until   core.Micros
	looking bool // a look is under way that may prolong it
}

// absences remembers which clients have no penalty. It is of fixed size: where there is no room what ends first is forgotten,
// which costs a call.
type absences struct {
	mask  uint64
	sets  [][setWays]absence
	locks [locks]struct {
		sync.Mutex
		_ [56]byte // a cache line each
	}
}

func newAbsences(most int) *absences {
	n := 1
	for n*2*setWays <= most {
		n *= 2
	}
	return &absences{mask: uint64(n - 1), sets: make([][setWays]absence, n)}
}

// lock returns the ways of an identity, locked.
func (t *absences) lock(id identity) (*[setWays]absence, *sync.Mutex) {
	index := id[0] & t.mask
	mu := &t.locks[index%locks].Mutex
	mu.Lock()
	return &t.sets[index], mu
}

// known reports whether there is no penalty, and whether the caller is to look again: it has been known for half of the time,
// and nobody else looks.
func (t *absences) known(now core.Micros, id identity) (absent, look bool) {
	ways, mu := t.lock(id)
	defer mu.Unlock()
	for i := range ways {
		if w := &ways[i]; w.id == id && now < w.until {
			look = !w.looking && w.until-now <= AbsenceMax/2
			w.looking = w.looking || look
			return true, look
		}
	}
	return false, false
}

// learn keeps what was said of a penalty: that there was none, which is good until then, or, with 0, that there is one. Less
// than 0 says that nothing was learned, and that nobody looks any more.
func (t *absences) learn(id identity, until core.Micros) {
	ways, mu := t.lock(id)
	defer mu.Unlock()
	victim := &ways[0]
	for i := range ways {
		w := &ways[i]
		if w.id == id {
			w.looking = false
			if until == 0 || until > w.until {
				w.until = until
			}
			return
		}
		if w.until < victim.until {
			victim = w
		}
	}
	if until > 0 {
		*victim = absence{id: id, until: until}
	}
}

// unpenalized reports whether all that the attempt would still ask is whether there is a penalty, and none of them is in force
// as far as is known. Then their results say so.
func (a *attempt) unpenalized() bool {
	if a.inHand == 0 || a.kind != takes {
		return false
	}
	for i := range a.checks {
		if c := &a.checks[i]; a.parts[i].role != reserved && (c.Penalty == nil || c.Op != core.OpTake) {
			return false
		}
	}
	var at core.Micros
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
			a.results[i] = core.Result{At: at}
		}
	}
	return true
}

// look asks in the background whether there is a penalty by now.
func (s *Store) look(id identity, c *core.Check) {
	checks := []core.Check{*c}
	checks[0].Key = append([]byte(nil), c.Key...)
	if !s.start(func() {
		defer func() { _ = recover() }()
		defer s.absences.learn(id, -1)
		results, sent := make([]core.Result, 1), s.now()
		s.counts.calls.Add(1)
		err := s.inner.Take(context.Background(), checks, results)
		s.learnAbsences(sent, true, checks, results, err)
		s.learn(sent, takes, checks, results, err)
	}) {
		s.absences.learn(id, -1)
	}
}

// learnAbsences remembers who has no penalty, if that is of use, and forgets it of who has one.
func (s *Store) learnAbsences(sent core.Micros, useful bool, checks []core.Check, results []core.Result, err error) {
	for i := range checks {
		switch {
		case checks[i].Penalty == nil || err != nil:
		case results[i].Refused:
			s.absences.learn(s.identify(checks[i].Key), 0)
		case useful && checks[i].Op == core.OpTake:
			s.absences.learn(s.identify(checks[i].Key), sent+AbsenceMax)
		}
	}
}
