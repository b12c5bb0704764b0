// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// role is the way in which one check of a call is answered.
type role uint8

const (
	sends    role = iota // the inner store gets the caller's check unchanged
	reserved             // the request has reserved held units
	asks                 // the call takes units for this request and for others
)

// part holds the state of one check of a call.
type part struct {
	role   role
	seen   bool // the attempt has processed the check, or waits for its counter
	id     identity
	shard  *shard
	held   *heldCounter
	units  lease.Held
	asking lease.Call
}

// attempt is one call in which some limits can be leased.
//
// An attempt goes through its checks once and reserves held units; the method next selects the
// order. If another call is under way for a counter, the attempt waits for that call. An attempt
// does not wait while other requests wait for a call that it is about to make, so attempts cannot
// deadlock. Then one call to the inner store takes everything that is not reserved. If that call is
// denied or fails, the reserved units are put back.
type attempt struct {
	store   *Store
	checks  []counter.Check
	results []counter.Result
	kind    kind
	parts   []part
	owned   int  // number of checks that take units for others too
	inHand  int  // number of checks with reserved units
	atOnce  bool // whether the attempt must neither wait nor call the inner store

	deadline  time.Time
	wait      *waiter // set while the attempt waits in the queue of checks[at]
	at        int
	denier    int   // the check to process first: see findDenier; -1 if there is none
	recording *part // the part whose denial the call records

	asked   []counter.Check // the checks for the inner store
	answers []counter.Result
	from    []int // the index in checks of each element of asked
}

// attempt.reset prepares the attempt for a call.
func (a *attempt) reset(s *Store, k kind, checks []counter.Check, results []counter.Result) {
	*a = attempt{store: s, checks: checks, results: results, kind: k, parts: slices.Grow(a.parts[:0], len(checks))[:len(checks)],
		asked: a.asked[:0], answers: a.answers[:0], from: a.from[:0]}
	a.denier = a.findDenier()
}

// attempt.release drops the attempt's pointers and returns it to the pool.
func (a *attempt) release() {
	to := &a.store.pools.attempts
	clear(a.parts)
	clear(a.asked)
	a.store, a.checks, a.results, a.wait, a.recording = nil, nil, nil, nil, nil
	to.Put(a)
}

// outcome is the state of an attempt.
type outcome uint8

const (
	settled outcome = iota // the call is answered
	waiting                // the attempt waits in a queue
	ready                  // the inner store must be called
)

// attempt.reserve processes the remaining checks until one of them denies the call or must wait.
func (a *attempt) reserve() outcome {
	for a.next() {
		switch v := a.take(a.at); v {
		case lease.Wait:
			return waiting
		case lease.Deny:
			return a.deny()
		}
	}
	return a.reservedAll()
}

// attempt.next selects the next check to process, and returns false if none is left. A check whose
// counter is known to deny the request comes first, and then the check whose counter admits the
// fewest requests. So requests of a client over its own limit usually neither reserve nor request
// units of a limit that all clients share. Otherwise a burst of one client could take all of these
// units until its own limit denies it, and the shared limit would deny other clients.
func (a *attempt) next() bool {
	at := a.denier
	a.denier = -1
	if at < 0 {
		at = a.fewest()
	}
	if at < 0 {
		return false
	}
	a.at, a.parts[at].seen = at, true
	return true
}

// attempt.fewest returns the index of the remaining check whose counter admits the fewest requests,
// or -1 if none is left.
func (a *attempt) fewest() int {
	at, fewest := -1, int64(0)
	for i := range a.checks {
		c := &a.checks[i]
		if a.parts[i].seen || !leasable(c) {
			continue
		}
		if n := c.Limit.Capacity() / c.Cost; at < 0 || n < fewest {
			at, fewest = i, n
		}
	}
	return at
}

// attempt.findDenier returns the index of a check whose counter is known to deny the request, or -1
// if there is none. A single leased check needs no order, so findDenier returns -1 then.
func (a *attempt) findDenier() int {
	leased, s := 0, a.store
	for i := range a.checks {
		if leasable(&a.checks[i]) {
			leased++
		}
	}
	if leased < 2 {
		return -1
	}
	for i := range a.checks {
		c, p := &a.checks[i], &a.parts[i]
		if !leasable(c) {
			continue
		}
		p.id = s.identify(c.Key)
		sh := s.counters.of(p.id)
		sh.mu.Lock()
		h := sh.byID[p.id]
		denies := h != nil && h.counter.Denies(s.now(), c.Limit, c.Cost)
		sh.mu.Unlock()
		if denies {
			return i
		}
	}
	return -1
}

// leasable reports whether a check may be answered from held units.
func leasable(c *counter.Check) bool {
	return c.Lease && c.Op == counter.OpTake && c.Cost > 0 && !c.Shadow
}

// attempt.take decides check i if its counter can do so.
func (a *attempt) take(i int) lease.Verdict {
	s, c, p := a.store, &a.checks[i], &a.parts[i]
	if p.id == (identity{}) { // otherwise findDenier has set it
		p.id = s.identify(c.Key)
	}
	p.shard = s.counters.of(p.id)
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	if s.closed.Load() {
		return 0
	}
	h := p.shard.hold(p.id, c, s.counters.most)
	if h == nil {
		if a.remembered(i) {
			return lease.Deny
		}
		return 0
	}
	p.held = h
	now := s.now()
	v, units := h.counter.Take(now, c.Limit, c.Cost)
	switch v {
	case lease.Admit, lease.AdmitAsk:
		a.inHand++
		p.role, p.units = reserved, units
		h.counter.Answer(now, c.Cost, v, &a.results[i])
		a.results[i].Receipt = units.Receipt
		if v == lease.AdmitAsk {
			s.prefetch(now, p.shard, h, c.Limit)
		}
	case lease.Deny:
		h.counter.Answer(now, c.Cost, v, &a.results[i])
	case lease.Ask:
		if a.remembered(i) {
			return lease.Deny
		}
		if !a.atOnce {
			a.claimCall(p, now, c)
		}
	case lease.Wait:
		if a.atOnce || a.owned > 0 || !a.hasTime() {
			h.counter.Leave(c.Cost)
			return 0
		}
		a.enqueue(h, c)
	}
	return v
}

// attempt.remembered reports whether a recent denial of check i makes a call to the store
// unnecessary. A held counter usually remembers that denial itself, so this matters for counters
// that were evicted or are not held.
func (a *attempt) remembered(i int) bool {
	s := a.store
	if s.denials == nil || a.kind != takes {
		return false
	}
	_, denies := s.denials.recall(s.now(), a.checks, i, &a.results[i], &recorder{})
	return denies
}

// claimCall makes the attempt's call the only call for the check's counter, unless another call is
// under way.
func (a *attempt) claimCall(p *part, now counter.Micros, c *counter.Check) {
	if asking, ok := p.held.ask(now, c.Limit, c.Cost); ok {
		p.role, p.asking = asks, asking
		a.owned++
	}
}

// hasTime reports whether the request has enough time to wait for another call. There must be
// enough time for the rest of that call, for the call after it, and for the request's own call. If
// the store is too slow for that, each request makes its own call at once.
func (a *attempt) hasTime() bool {
	left := a.store.waitMax
	if !a.deadline.IsZero() {
		left = time.Until(a.deadline)
	}
	return 3*a.store.responseTime() <= left
}

// responseTime returns the recent response time of the inner store.
func (s *Store) responseTime() time.Duration { return time.Duration(s.rtt.Load()) * time.Microsecond }

// noteAnswer records the answer to a call and how long it took. A time that is longer than the
// previous estimate takes effect at once, and a shorter one gradually.
func (s *Store) noteAnswer(sent counter.Micros) {
	s.answered(sent)
	took, rtt := int64(s.now()-sent), s.rtt.Load()
	s.rtt.Store(max(took, rtt-(rtt-took)/8))
}

// Store.answered records that a call has been answered. The argument named sent is when the call
// was sent.
func (s *Store) answered(sent counter.Micros) {
	s.lastArrived.Store(int64(s.now()))
	for {
		last := s.lastAnswered.Load()
		if int64(sent) <= last || s.lastAnswered.CompareAndSwap(last, int64(sent)) {
			return
		}
	}
}

// attempt.enqueue queues the attempt behind the call that is under way for a counter.
func (a *attempt) enqueue(h *heldCounter, c *counter.Check) {
	w := a.store.pools.waiters.Get().(*waiter)
	if a.deadline.IsZero() {
		a.deadline = time.Now().Add(a.store.waitMax)
	}
	w.limit, w.cost, w.next, w.decided, w.deadline = c.Limit, c.Cost, nil, false, a.deadline
	w.since = a.store.now()
	a.wait = w
	h.push(w)
}

// attempt.awaitCall waits for the call behind which the attempt is queued, and continues with the
// result.
func (a *attempt) awaitCall(ctx context.Context) (outcome, error) {
	s, p, w := a.store, &a.parts[a.at], a.wait
	a.wait = nil
	err := s.await(ctx, p, w)
	v := w.verdict
	if err == nil {
		switch v {
		case lease.Admit, lease.AdmitAsk:
			a.inHand++
			p.role, p.units, a.results[a.at] = reserved, w.held, w.result
		case lease.Deny:
			a.results[a.at] = w.result
		case lease.Ask:
			p.role, p.asking = asks, w.asking
			a.owned++
		}
	}
	w.limit = nil
	s.pools.waiters.Put(w)
	switch {
	case err != nil:
		a.abandon()
		return settled, err
	case v == lease.Deny:
		return a.deny(), nil
	}
	return a.reserve(), nil
}

// reservedAll returns the outcome of an attempt that has visited all checks.
func (a *attempt) reservedAll() outcome {
	if a.inHand < len(a.checks) && !a.unpenalized() {
		return ready
	}
	a.store.counts.leased.Add(1)
	return settled
}

// attempt.abandon puts back the reserved units and gives up the attempt's calls.
func (a *attempt) abandon() {
	for i := range a.parts {
		switch p := &a.parts[i]; p.role {
		case reserved:
			a.putBack(i)
		case asks:
			p.shard.mu.Lock()
			a.store.abandon(p.shard, p.held, &p.asking)
			p.shard.mu.Unlock()
		}
		a.parts[i].role = sends
	}
	a.owned, a.inHand = 0, 0
}

// putBack puts back the units that check i has reserved, and updates its result. If the counter has
// been evicted in the meantime, the units are lost until their window ends.
func (a *attempt) putBack(i int) {
	s, c, p := a.store, &a.checks[i], &a.parts[i]
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	a.results[i].Granted, a.results[i].Receipt = 0, 0
	if h := p.held; h.id == p.id {
		now := s.now()
		h.counter.PutBack(now, c.Cost, p.units)
		h.counter.Answer(now, c.Cost, 0, &a.results[i])
		s.lookAfter(p.shard, h)
	}
}

// attempt.deny denies the call according to the state of the counter of check a.at. The store is
// called only if the denial must be recorded or a shadow check must be evaluated.
func (a *attempt) deny() outcome {
	s, i := a.store, a.at
	denial := a.results[i]
	a.abandon()
	if a.kind == shadows || a.checks[i].Guard != 0 && !a.recorded(i) {
		return ready // the call is made with the caller's checks unchanged
	}
	now, p := s.now(), recorder{}
	for j := range a.checks {
		if a.parts[j].units.Receipt != 0 {
			continue // putBack has set its result
		}
		if known := s.denials != nil && s.denials.knows(now, a.checks, j, &a.results[j], &p); !known {
			a.results[j] = unknown(denial.At, &a.checks[j])
		}
	}
	a.results[i] = denial
	s.counts.denials.Add(1)
	return settled
}

// attempt.recorded reports whether the denial by check i is already recorded as a violation, or
// another call is recording it. If the denial is not recorded, this call records it.
func (a *attempt) recorded(i int) bool {
	p, denial := &a.parts[i], a.results[i]
	if a.remembered(i) {
		a.results[i] = denial
		return true
	}
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	h, violation := p.held, a.checks[i].Violation
	switch {
	case h == nil || h.id != p.id:
		return false
	case h.recording == 0 && !a.atOnce:
		h.recording, a.recording = violation, p
		h.pins++
		return false
	}
	return h.recording == violation
}
