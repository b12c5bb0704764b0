// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
)

// TimeoutDefault is the default of Options.Timeout.
const TimeoutDefault = 50 * time.Millisecond

// Options configures a store. The zero Options are the defaults.
type Options struct {
	// DenialsMax is the number of counters whose answers are remembered. If DenialsMax is 0, the
	// number is DenialsMaxDefault. The greatest value is DenialsMaxBound. The number is rounded
	// down to a power of two, but is at least four. A negative number means that denials are not
	// remembered.
	DenialsMax int
	// CountersMax is the greatest number of counters that can hold units. If CountersMax is 0, the
	// number is CountersMaxDefault. The greatest value is CountersMaxBound. A smaller number than
	// 1024, except 0, means 1024.
	CountersMax int
	// Timeout is the time within which the inner store usually answers; 0 means TimeoutDefault. No
	// call is overdue before a tenth of that time. Timeout does not bound a call to the inner
	// store: that store's own timeout starts when the call is sent.
	Timeout time.Duration
	// WaitMax bounds how long a call waits for another call. WaitMax should be longer than the
	// inner store takes to fail, because a call that has waited for WaitMax fails with
	// [counter.ErrOverloaded] and not with [counter.ErrUnavailable]. If WaitMax is less than
	// Timeout, the bound is Timeout.
	WaitMax time.Duration
	// Reports remembers how much of each counter is used, and provides the clock. All stores of a
	// process over the same counters should have the same Reports. Nil means that the store has its
	// own.
	Reports *Reports
}

// Store is a [counter.Store] and [counter.Batcher] over another store. Create one with [New] and
// end it with [Store.Close]. A Store is safe for concurrent use.
type Store struct {
	inner   counter.Store
	batcher counter.Batcher // inner, if it implements Batcher
	timeout time.Duration
	waitMax time.Duration // how long a call waits for another call
	*Reports
	denials  *denials  // nil if denials are not remembered
	counters *counters // the counters that may hold units
	absences *absences // of penalties
	pools    *pools
	gates    gates
	counts   statistics
	rtt      atomic.Int64 // the response time of the inner store, in microseconds

	lastAnswered atomic.Int64 // the latest sending time of all answered calls
	lastArrived  atomic.Int64 // when the latest answer arrived
	life
}

var _ counter.Batcher = (*Store)(nil)

// pools holds the pools of a store. It is allocated apart from the store, and nothing in the pools
// refers to the store. The runtime refers to a pool for two garbage collections after its last use.
// If the pools were fields of the store, the store's tables would stay in memory for that time. The
// heap would then grow with each replacement of a store, and each time the next collection would
// begin later.
type pools struct {
	batches  sync.Pool // of *batch
	attempts sync.Pool // of *attempt
	waiters  sync.Pool // of *waiter
	queue    sync.Pool // of *queued
}

func newPools() *pools {
	return &pools{sync.Pool{New: func() any { return new(batch) }}, sync.Pool{New: func() any { return new(attempt) }},
		sync.Pool{New: newWaiter}, sync.Pool{New: newQueued}}
}

// statistics holds the store's statistics.
type statistics struct {
	calls, leased, denials, returned atomic.Uint64
}

// New returns a store over inner. The caller closes inner after the store. The error names the
// option that is out of bounds.
func New(inner counter.Store, o Options) (*Store, error) {
	switch {
	case o.DenialsMax > DenialsMaxBound:
		return nil, fmt.Errorf("denials max %d is out of bounds: it must be at most %d", o.DenialsMax, DenialsMaxBound)
	case o.CountersMax < 0 || o.CountersMax > CountersMaxBound:
		return nil, fmt.Errorf("counters max %d is out of bounds: it must be between 0 and %d", o.CountersMax, CountersMaxBound)
	case o.Timeout < 0:
		return nil, fmt.Errorf("timeout %v is out of bounds: it must be positive", o.Timeout)
	}
	s := &Store{inner: inner, timeout: cmp.Or(o.Timeout, TimeoutDefault), Reports: o.Reports}
	if s.Reports == nil {
		s.Reports = NewReports(nil)
	}
	s.waitMax = max(s.timeout, o.WaitMax)
	s.batcher, _ = inner.(counter.Batcher)
	s.counters = newCounters(cmp.Or(o.CountersMax, CountersMaxDefault))
	s.absences = newAbsences(cacheMax)
	s.pools = newPools()
	s.gates.sources = sources.New()
	s.ending = make(chan struct{})
	if o.DenialsMax >= 0 {
		s.denials = newDenials(cmp.Or(o.DenialsMax, DenialsMaxDefault), s.seeds)
	}
	return s, nil
}

// Take implements [counter.Store].
func (s *Store) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := counter.ValidateChecks(checks, results); err != nil {
		return err
	}
	kind, leased, exact := kindOf(checks)
	if ctx.Err() == nil {
		if kind == takes && exact && s.denyFromMemory(checks, results, true) {
			return nil
		}
		if leased && kind <= shadows && !s.closed.Load() {
			a := s.attempt(kind, checks, results)
			return s.finish(ctx, a, a.reserve())
		}
	}
	return s.take(ctx, kind, checks, results)
}

// TakeNow answers a call like Take, but only if that is possible without calling the inner store
// and without waiting for another call. If a call is needed, TakeNow returns false, and charges
// nothing.
func (s *Store) TakeNow(checks []counter.Check, results []counter.Result) bool {
	if counter.ValidateChecks(checks, results) != nil {
		return false
	}
	kind, leased, exact := kindOf(checks)
	if kind == takes && exact && s.denyFromMemory(checks, results, true) {
		return true
	}
	if !leased || kind > shadows || s.closed.Load() || !s.decides(checks) {
		return false
	}
	a := s.attempt(kind, checks, results)
	defer a.release()
	a.atOnce = true
	if a.reserve() == settled {
		return true
	}
	a.abandon()
	return false
}

// Store.decides reports whether each check that can be leased would be decided by its counter at
// once. Without this test, requests that have to call the store would count twice in the demand of
// their counters.
func (s *Store) decides(checks []counter.Check) bool {
	for i := range checks {
		c := &checks[i]
		if !leasable(c) {
			continue
		}
		id := s.identify(c.Key)
		sh := s.counters.of(id)
		sh.mu.Lock()
		h := sh.byID[id]
		can := h != nil && h.counter.Decides(s.now(), c.Limit, c.Cost)
		sh.mu.Unlock()
		if !can {
			return false
		}
	}
	return true
}

// Store.conclude records the outcome of a call and returns the error for the caller. If the call
// was sent only to renew a denial, and the store did not answer, the remembered denial answers the
// call.
func (s *Store) conclude(ctx context.Context, sent counter.Micros, k kind, checks []counter.Check, results []counter.Result, err error) error {
	s.learnAbsences(sent, false, checks, results, err)
	s.learn(sent, k, checks, results, err)
	if err == nil {
		s.answered(sent)
		s.learnUses(sent, checks, results)
	}
	if err != nil && k == takes && ctx.Err() == nil && s.denyFromMemory(checks, results, false) {
		return nil
	}
	return err
}

// Store.attempt returns an attempt at a call.
func (s *Store) attempt(k kind, checks []counter.Check, results []counter.Result) *attempt {
	a := s.pools.attempts.Get().(*attempt)
	a.reset(s, k, checks, results)
	return a
}

// Store.finish completes an attempt and releases it.
func (s *Store) finish(ctx context.Context, a *attempt, o outcome) (err error) {
	defer a.release()
	if o == settled {
		return nil
	}
	s.active.Add(1)
	defer s.active.Add(-1)
	for o == waiting {
		if o, err = a.awaitCall(ctx); err != nil {
			return err
		}
	}
	if o == ready {
		err = a.callInTurn(ctx)
	}
	return err
}

// denyFromMemory answers a call from memory if a remembered denial denies it. If mayLook is true,
// denyFromMemory returns false for some calls, so that they go to the store. These are one call
// that renews a remembered denial early, and a few calls with checks that have no remembered
// answer.
func (s *Store) denyFromMemory(checks []counter.Check, results []counter.Result, mayLook bool) bool {
	if s.denials == nil {
		return false
	}
	now, denying, looks, unknowns, p := s.now(), -1, false, false, recorder{}
	for i := range checks {
		known, denies, look := s.denials.recallOrLook(now, checks, i, &results[i], &p, mayLook)
		if looks = looks || look; !known {
			results[i].At, unknowns = 0, unknowns || checks[i].Limit != nil
		}
		// Held units take precedence over remembered denials.
		if denies && denying < 0 && !leasable(&checks[i]) {
			denying = i
		}
	}
	switch {
	case denying < 0 || looks:
		return false
	case unknowns && mayLook && checks[denying].Penalty == nil && s.denials.mayAsk(now, &checks[denying]):
		return false
	}
	for i := range checks {
		if results[i].At == 0 {
			results[i] = unknown(results[denying].At, &checks[i])
		}
	}
	s.counts.denials.Add(1)
	return true
}

// Store.learn remembers the answer to a call that was denied. Even if the call failed, the method
// drops the answers that the call has made out of date.
func (s *Store) learn(sent counter.Micros, k kind, checks []counter.Check, results []counter.Result, err error) {
	switch {
	case k == settles:
		for i := range checks {
			if op := checks[i].Op; op == counter.OpRefund || op == counter.OpReset {
				s.forget(&checks[i])
			}
		}
	case s.denials == nil || err != nil:
	case k != looks && anyDenied(checks, results):
		s.denials.learn(sent, s.now(), checks, results)
	default:
		s.denials.outdate(checks)
	}
}

// Forget drops the remembered answers of a counter to which another process has restored units.
func (s *Store) Forget(c *counter.Check) { s.forget(c) }

// Store.forget drops the remembered answers of a counter that was reset or refunded. After a reset,
// the units held for the counter are no longer charged, so they are dropped too.
func (s *Store) forget(c *counter.Check) {
	id := s.identify(c.Key)
	if c.Op == counter.OpReset {
		s.usage.forget(id)
	}
	if s.denials != nil {
		s.denials.forget(s.now(), id)
	}
	sh := s.counters.of(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if h := sh.byID[id]; h != nil {
		h.counter.Forget(c.Op == counter.OpReset)
	}
}

// kind classifies a call by how it can be answered from memory.
type kind uint8

const (
	// every check is a take, and none is a shadow check, so a denial from memory equals that of the
	// store
	takes kind = iota
	// every check is a take, and some are shadow checks, which must always be evaluated
	shadows
	looks   // other operations, none of them a refund or a reset
	settles // a refund or a reset
)

// kindOf returns a call's kind, whether any check can be answered from held units, and whether any
// check cannot.
func kindOf(checks []counter.Check) (k kind, leased, exact bool) {
	for i := range checks {
		if leasable(&checks[i]) {
			leased = true
			continue
		}
		exact = true
		switch c := &checks[i]; {
		case c.Op == counter.OpRefund || c.Op == counter.OpReset:
			return settles, false, true
		case c.Op != counter.OpTake:
			k = looks
		case c.Shadow:
			k = max(k, shadows)
		}
	}
	return k, leased, exact
}

// anyDenied reports whether a call that consists of takes was denied.
func anyDenied(checks []counter.Check, results []counter.Result) bool {
	for i := range checks {
		if results[i].Denied && !checks[i].Shadow {
			return true
		}
	}
	return false
}

// Stats is the state of a store and its counts since New.
type Stats struct {
	Calls    uint64 // calls to the inner store
	Leased   uint64 // calls admitted only from held units, without calling the store
	Denials  uint64 // calls denied from memory, without calling the store
	Returned uint64 // units refunded
	InHand   int64  // units held
}

// Stats returns the store's statistics. The statistics are not a snapshot of one instant.
func (s *Store) Stats() Stats {
	stats := Stats{Calls: s.counts.calls.Load(), Leased: s.counts.leased.Load(), Denials: s.counts.denials.Load(),
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
