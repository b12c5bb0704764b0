// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// attempt.compose builds the call to the inner store from the caller's checks, except those with
// reserved units.
func (a *attempt) compose() {
	for i := range a.checks {
		p := &a.parts[i]
		if p.role == reserved {
			continue
		}
		a.asked, a.from = append(a.asked, a.checks[i]), append(a.from, i)
		c := &a.asked[len(a.asked)-1]
		if p.role == asks {
			p.asking.Fill(c)
		}
		if c.Guard != 0 { // a penalty never has reserved units, so it is part of the call
			c.Guard = a.position(c.Guard-1) + 1
		}
	}
	for range a.asked {
		a.answers = append(a.answers, counter.Result{})
	}
}

// attempt.position returns the index of the caller's check i in the composed call.
func (a *attempt) position(i int) int {
	left := i
	for j := range i {
		if a.parts[j].role == reserved {
			left--
		}
	}
	return left
}

// errPanicked is the error of a call in which the inner store panicked.
var errPanicked = errors.New("the store beneath panicked")

// attempt.call calls the inner store, and completes every counter and every waiter of the call,
// whatever the outcome. The store's own deadline starts when the call is sent; the request's
// earlier wait does not count.
func (a *attempt) call(ctx context.Context) error {
	s := a.store
	a.compose()
	sent, err := s.now(), errPanicked
	s.counts.calls.Add(1)
	defer func() { a.settle(ctx, sent, err) }()
	err = s.inner.Take(ctx, a.asked, a.answers)
	return err
}

// attempt.settle processes the answer to the composed call.
func (a *attempt) settle(ctx context.Context, sent counter.Micros, err error) {
	s := a.store
	if err == nil {
		s.noteAnswer(sent)
		s.learnUses(sent, a.asked, a.answers) // before the granted units are used
	}
	for k, i := range a.from {
		switch {
		case a.parts[i].role == asks:
			a.granted(ctx, k, i, err)
		case err == nil:
			a.results[i] = a.answers[k]
		}
	}
	if err != nil || anyDenied(a.asked, a.answers) {
		for i := range a.parts {
			if a.parts[i].role == reserved {
				a.putBack(i)
			}
		}
	}
	if p := a.recording; p != nil {
		p.shard.mu.Lock()
		p.held.recording = 0
		p.held.pins--
		p.shard.mu.Unlock()
	}
	s.learnAbsences(sent, true, a.asked, a.answers, err)
	s.learn(sent, a.kind, a.asked, a.answers, err)
}

// attempt.granted passes the units granted to check i to its counter and decides the waiting
// requests. The argument k is the index of the check's answer.
func (a *attempt) granted(ctx context.Context, k, i int, err error) {
	s, p, r := a.store, &a.parts[i], &a.results[i]
	h := p.held
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	h.pins--
	answer := &a.answers[k]
	if err != nil {
		failure := sharedError(ctx, err)
		s.returned(h, &p.asking, answer, err, failure, failure == nil && ctx.Err() == nil)
	} else {
		s.returned(h, &p.asking, answer, nil, nil, answer.Granted == 0 && !answer.Denied)
		*r = *answer
		r.Granted = min(r.Granted, a.checks[i].Cost)
		r.Remaining = min(h.limit.Capacity(), r.Remaining+h.counter.Held(s.now()))
	}
	s.lookAfter(p.shard, h)
}

// Store.returned is invoked after a call. It passes the outcome to the counter and decides the
// waiting requests with [Store.serve]. If the call failed and a newer call was made meanwhile, the
// requests wait for the newer one. The caller holds the lock.
func (s *Store) returned(h *heldCounter, asking *lease.Call, r *counter.Result, err, failure error, alone bool) {
	if failure != nil {
		h.failed = s.now()
	}
	switch {
	case err == nil:
		h.tries = 0
		h.counter.Granted(s.now(), asking, r)
	case h.counter.Overtaken(asking):
		return
	default:
		h.counter.Failed(s.now())
	}
	s.serve(h, failure, alone)
}

// Store.take makes a call without leased checks, after it has passed its gate.
func (s *Store) take(ctx context.Context, k kind, checks []counter.Check, results []counter.Result) error {
	p, q, err := s.enter(k, checks, results, nil)
	if err != nil {
		return err
	}
	if q != nil {
		return s.takeInTurn(ctx, p, q, k, checks, results)
	}
	return s.takeNow(ctx, p, k, checks, results)
}

// takeInTurn makes a call that is queued at its gate.
func (s *Store) takeInTurn(ctx context.Context, p pass, q *queued, k kind, checks []counter.Check, results []counter.Result) error {
	if done, err := s.awaitTurn(ctx, q); done || err != nil {
		return err
	}
	return s.takeNow(ctx, p, k, checks, results)
}

// takeNow makes a call that has passed its gate.
func (s *Store) takeNow(ctx context.Context, p pass, k kind, checks []counter.Check, results []counter.Result) error {
	sent, err := s.now(), errPanicked
	s.counts.calls.Add(1)
	defer func() { s.leaveGate(ctx, p, k, checks, results, err) }()
	err = s.inner.Take(ctx, checks, results)
	return s.conclude(ctx, sent, k, checks, results, err)
}
