// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// TimeoutDefault is how long a call may take that waits for another's, unless told otherwise.
const TimeoutDefault = 50 * time.Millisecond

// Options configures a store. The zero Options are the defaults.
type Options struct {
	// DenialsMax is how many counters' answers are remembered: 0 means DenialsMaxDefault, otherwise up to DenialsMaxBound,
	// rounded down to a power of two but at least four. Less than 0 means that no refusal is remembered.
	DenialsMax int
	// CountersMax is how many counters are held of which units may be in hand: 0 means CountersMaxDefault, otherwise up to
	// CountersMaxBound, and 1024 at least.
	CountersMax int
	// Timeout is how long a call may take that waits for another's, from the moment it begins to wait; its own question to
	// the store beneath included. 0 means TimeoutDefault. Other calls take as long as the store beneath.
	Timeout time.Duration
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
	timeout time.Duration
	seeds
	denials  *denials  // nil: none are remembered
	counters *counters // of which units may be in hand
	absences *absences // of penalties
	usage    *usage    // of counters
	batches  sync.Pool // of *batch
	attempts sync.Pool // of *attempt
	waiters  sync.Pool // of *waiter
	queue    sync.Pool // of *queued
	gates    gates
	counts   counts
	rtt      atomic.Int64 // microseconds that an answer took of late
	life
}

var _ core.Batcher = (*Store)(nil)

// counts are the store's figures.
type counts struct {
	calls, leased, refusals, returned atomic.Uint64
}

// New returns a store over inner, which the caller closes after it. The error says which option is out of bounds.
func New(inner core.Store, o Options) (*Store, error) {
	switch {
	case o.DenialsMax > DenialsMaxBound:
		return nil, fmt.Errorf("denials max %d is out of bounds: it must be at most %d", o.DenialsMax, DenialsMaxBound)
	case o.CountersMax < 0 || o.CountersMax > CountersMaxBound:
		return nil, fmt.Errorf("counters max %d is out of bounds: it must be between 0 and %d", o.CountersMax, CountersMaxBound)
	case o.Timeout < 0:
		return nil, fmt.Errorf("timeout %v is out of bounds: it must be positive", o.Timeout)
	}
	s := &Store{inner: inner, now: o.Now, timeout: cmp.Or(o.Timeout, TimeoutDefault), seeds: newSeeds()}
	s.batcher, _ = inner.(core.Batcher)
	s.counters = newCounters(cmp.Or(o.CountersMax, CountersMaxDefault))
	s.absences = newAbsences(DenialsMaxDefault)
	s.usage = newUsage(knownMax)
	s.batches.New = func() any { return new(batch) }
	s.attempts.New = func() any { return new(attempt) }
	s.waiters.New = newWaiter
	s.queue.New = newQueued
	s.ending = make(chan struct{})
	if s.now == nil {
		start := time.Now()
		s.now = func() core.Micros { return 1 + core.Micros(time.Since(start)/time.Microsecond) }
	}
	if o.DenialsMax >= 0 {
		s.denials = newDenials(cmp.Or(o.DenialsMax, DenialsMaxDefault), s.seeds)
	}
	return s, nil
}

// Take answers the checks as [core.Store] says.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if err := core.ValidateChecks(checks, results); err != nil {
		return err
	}
	kind, leased, exact := kindOf(checks)
	if ctx.Err() == nil {
		if kind == takes && exact && s.refuse(checks, results, true) {
			return nil
		}
		if leased && kind <= shadows && !s.closed.Load() {
			a := s.attempt(kind, checks, results)
			return s.finish(ctx, a, a.reserve())
		}
	}
	return s.take(ctx, kind, checks, results)
}

// conclude learns from what came of a call, and returns what the caller is told: a call that only looked again, and was not
// answered, is refused by what holds for a while yet.
func (s *Store) conclude(ctx context.Context, sent core.Micros, k kind, checks []core.Check, results []core.Result, err error) error {
	s.learnAbsences(sent, false, checks, results, err)
	s.learn(sent, k, checks, results, err)
	if err == nil {
		s.learnUses(sent, checks, results)
	}
	if err != nil && k == takes && ctx.Err() == nil && s.refuse(checks, results, false) {
		return nil
	}
	return err
}

// attempt returns an attempt at a call.
func (s *Store) attempt(k kind, checks []core.Check, results []core.Result) *attempt {
	a := s.attempts.Get().(*attempt)
	a.reset(s, k, checks, results)
	return a
}

// finish carries an attempt on to its end, and releases it.
func (s *Store) finish(ctx context.Context, a *attempt, o outcome) (err error) {
	defer a.release()
	if o == settled {
		return nil
	}
	s.active.Add(1)
	defer s.active.Add(-1)
	for o == waiting {
		if o, err = a.await(ctx); err != nil {
			return err
		}
	}
	if o == ready {
		err = a.callInTurn(ctx)
	}
	return err
}

// refuse answers a call from memory if that refuses it, and it is not one that is to ask the store, where it may: the one that
// looks again, or one with a check of which nothing is known.
func (s *Store) refuse(checks []core.Check, results []core.Result, mayLook bool) bool {
	if s.denials == nil {
		return false
	}
	now, refusing, looks, unknowns, p := s.now(), -1, false, false, recorder{}
	for i := range checks {
		known, refuses, look := s.denials.recallOrLook(now, checks, i, &results[i], &p, mayLook)
		if looks = looks || look; !known {
			results[i].At, unknowns = 0, unknowns || checks[i].Limit != nil
		}
		if refuses && refusing < 0 && !leasable(&checks[i]) { // what is in hand comes before what is remembered
			refusing = i
		}
	}
	switch {
	case refusing < 0 || looks:
		return false
	case unknowns && mayLook && checks[refusing].Penalty == nil && s.denials.mayAsk(now, &checks[refusing]):
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
	case k == settles:
		for i := range checks {
			if op := checks[i].Op; op == core.OpGiveBack || op == core.OpReset {
				s.forget(&checks[i])
			}
		}
	case s.denials == nil || err != nil:
	case k != looks && refused(checks, results):
		s.denials.learn(sent, s.now(), checks, results)
	default:
		s.denials.outdate(checks)
	}
}

// forget drops what is known of a counter that was reset or given back to. What is in hand of one that was reset is not
// charged any more.
func (s *Store) forget(c *core.Check) {
	id := s.identify(c.Key)
	if s.denials != nil {
		s.denials.forget(s.now(), id)
	}
	sh := s.counters.of(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if h := sh.byID[id]; h != nil {
		h.counter.Forget(c.Op == core.OpReset)
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

// kindOf returns a call's kind, and whether any of its checks may be answered from units in hand, and any may not.
func kindOf(checks []core.Check) (k kind, leased, exact bool) {
	for i := range checks {
		if leasable(&checks[i]) {
			leased = true
			continue
		}
		exact = true
		switch c := &checks[i]; {
		case c.Op == core.OpGiveBack || c.Op == core.OpReset:
			return settles, false, true
		case c.Op != core.OpTake:
			k = looks
		case c.Shadow:
			k = max(k, shadows)
		}
	}
	return k, leased, exact
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
	stats := Stats{Calls: s.counts.calls.Load(), Leased: s.counts.leased.Load(), Refusals: s.counts.refusals.Load(),
		Returned: s.counts.returned.Load()}
	for i := range s.counters.shards {
		sh := &s.counters.shards[i]
		sh.mu.Lock()
		for _, h := range sh.ticking {
			stats.InHand += h.counter.Held(s.now())
		}
		sh.mu.Unlock()
	}
	return stats
}
