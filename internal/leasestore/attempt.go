// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// role is what becomes of one check of a call.
type role uint8

const (
	sends    role = iota // the store beneath is asked, as the caller asks
	reserved             // units in hand are the request's
	asks                 // the store is asked for this request and for others
)

// part is what is known of one check of a call.
type part struct {
	role   role
	id     identity
	shard  *shard
	held   *held
	units  lease.Held
	asking lease.Asking
}

// attempt is one call of which some limits may be leased.
//
// It goes through its checks once and reserves what is in hand. Where another call is under way for a counter it waits for
// that one, but never while others wait for what it is about to ask: so no two wait for each other. Then it asks the store
// beneath, in one call, for all that is not in hand. If that is refused, or fails, what was reserved goes back.
type attempt struct {
	store   *Store
	checks  []core.Check
	results []core.Result
	kind    kind
	parts   []part
	owned   int // checks that ask
	inHand  int // checks whose units are reserved

	deadline  time.Time
	wait      *waiter // in a queue, for the check at
	at        int
	recording *part // the call is for a refusal to be recorded

	asked   []core.Check // what the store beneath is asked
	answers []core.Result
	from    []int // where each is among checks
}

// reset makes the attempt one of a call.
func (a *attempt) reset(s *Store, k kind, checks []core.Check, results []core.Result) {
	*a = attempt{store: s, checks: checks, results: results, kind: k, parts: slices.Grow(a.parts[:0], len(checks))[:len(checks)],
		asked: a.asked[:0], answers: a.answers[:0], from: a.from[:0]}
}

// release drops what the attempt points to.
func (a *attempt) release() {
	clear(a.parts)
	clear(a.asked)
	a.checks, a.results = nil, nil
	a.store.attempts.Put(a)
}

// outcome is how far an attempt has come.
type outcome uint8

const (
	settled outcome = iota // it is answered
	waiting                // it is in a queue
	ready                  // the store beneath is to be asked
)

// reserve goes on through the checks until one refuses, one has to wait, or there are no more.
func (a *attempt) reserve() outcome {
	for ; a.at < len(a.checks); a.at++ {
		if !leasable(&a.checks[a.at]) {
			continue
		}
		switch v := a.take(a.at); v {
		case lease.Wait:
			return waiting
		case lease.Deny:
			return a.deny()
		}
	}
	return a.reservedAll()
}

// leasable reports whether a check may be answered from units in hand.
func leasable(c *core.Check) bool {
	return c.Lease && c.Op == core.OpTake && c.Cost > 0 && !c.Shadow
}

// take decides check i as far as its counter can.
func (a *attempt) take(i int) lease.Verdict {
	s, c, p := a.store, &a.checks[i], &a.parts[i]
	p.id = s.identify(c.Key)
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
		a.own(p, now, c)
	case lease.Wait:
		if a.owned > 0 || !a.hasTime() {
			h.counter.Leave(c.Cost)
			return 0
		}
		a.enqueue(h, c)
	}
	return v
}

// remembered reports whether check i was refused so lately that its counter need not be asked. Its counter knows that too,
// unless it had to be forgotten meanwhile, or is not held.
func (a *attempt) remembered(i int) bool {
	s := a.store
	if s.denials == nil || a.kind != takes {
		return false
	}
	_, refuses := s.denials.recall(s.now(), a.checks, i, &a.results[i], &recorder{})
	return refuses
}

// own makes the call that of the check's counter, unless there is one under way.
func (a *attempt) own(p *part, now core.Micros, c *core.Check) {
	if asking, ok := p.held.ask(now, c.Limit, c.Cost); ok {
		p.role, p.asking = asks, asking
		a.owned++
	}
}

// hasTime reports whether the request may wait: for what is left of the call under way, for the one after it, and then for
// its own. Of a store that is farther away each asks for itself.
func (a *attempt) hasTime() bool {
	left := a.store.timeout
	if !a.deadline.IsZero() {
		left = time.Until(a.deadline)
	}
	return 3*a.store.away() <= left
}

// away returns how long the store beneath takes to answer.
func (s *Store) away() time.Duration { return time.Duration(s.rtt.Load()) * time.Microsecond }

// heard takes from an answer how far away the store beneath is: at once if it is farther than it was.
func (s *Store) heard(sent core.Micros) {
	took, rtt := int64(s.now()-sent), s.rtt.Load()
	s.rtt.Store(max(took, rtt-(rtt-took)/8))
}

func (a *attempt) enqueue(h *held, c *core.Check) {
	w := a.store.waiters.Get().(*waiter)
	if a.deadline.IsZero() {
		a.deadline = time.Now().Add(a.store.timeout)
	}
	w.limit, w.cost, w.next, w.decided, w.deadline = c.Limit, c.Cost, nil, false, a.deadline
	a.wait = w
	h.push(w)
}

// await waits for what the attempt is in a queue for, and goes on.
func (a *attempt) await(ctx context.Context) (outcome, error) {
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
	s.waiters.Put(w)
	switch {
	case err != nil:
		a.giveUp()
		return settled, err
	case v == lease.Deny:
		return a.deny(), nil
	}
	a.at++
	return a.reserve(), nil
}

// reservedAll says what remains to be done when all checks were gone through.
func (a *attempt) reservedAll() outcome {
	if a.inHand < len(a.checks) && !a.unpenalized() {
		return ready
	}
	a.store.counts.leased.Add(1)
	return settled
}

// giveUp puts back what was reserved and ends what was to be asked.
func (a *attempt) giveUp() {
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

// putBack returns what check i had reserved, and says of it what is known now. The units of a counter that was forgotten
// meanwhile are lost to their window.
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

// deny refuses the call by what the counter of check a.at knows: without asking, unless somebody must hear of it.
func (a *attempt) deny() outcome {
	s, i := a.store, a.at
	refusal := a.results[i]
	a.giveUp()
	if a.kind == shadows || a.checks[i].Guard != 0 && !a.recorded(i) {
		return ready // as the caller asks it
	}
	now, p := s.now(), recorder{}
	for j := range a.checks {
		if a.parts[j].units.Receipt != 0 {
			continue // it was put back, and its counter has answered
		}
		if known := s.denials != nil && s.denials.knows(now, a.checks, j, &a.results[j], &p); !known {
			a.results[j] = unknown(refusal.At, &a.checks[j])
		}
	}
	a.results[i] = refusal
	s.counts.refusals.Add(1)
	return settled
}

// recorded reports whether a refusal by check i is known as a violation, or a call is under way that makes it so. If not,
// this call will.
func (a *attempt) recorded(i int) bool {
	p, refusal := &a.parts[i], a.results[i]
	if a.remembered(i) {
		a.results[i] = refusal
		return true
	}
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	h, violation := p.held, a.checks[i].Violation
	switch {
	case h == nil || h.id != p.id:
		return false
	case h.recording == 0:
		h.recording, a.recording = violation, p
		h.pins++
		return false
	}
	return h.recording == violation
}
