// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// compose makes what the store beneath is asked: the caller's checks, without those whose units are reserved.
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
		if c.Guard != 0 { // a penalty is never reserved, so it is there
			c.Guard = a.position(c.Guard-1) + 1
		}
	}
	for range a.asked {
		a.answers = append(a.answers, core.Result{})
	}
}

// position returns where the caller's check i is among what is asked.
func (a *attempt) position(i int) int {
	left := i
	for j := range i {
		if a.parts[j].role == reserved {
			left--
		}
	}
	return left
}

// errPanicked is what became of a call in which the store beneath panicked.
var errPanicked = errors.New("the store beneath panicked")

// call asks the store beneath, and settles with everybody who has to do with it, whatever comes of it.
func (a *attempt) call(ctx context.Context) error {
	s, until := a.store, ctx
	if !a.deadline.IsZero() {
		var cancel context.CancelFunc
		until, cancel = context.WithDeadline(ctx, a.deadline)
		defer cancel()
	}
	a.compose()
	sent, err := s.now(), errPanicked
	s.counts.calls.Add(1)
	defer func() { a.settle(ctx, sent, err) }()
	err = s.inner.Take(until, a.asked, a.answers)
	return err
}

// settle takes the answer to what was asked.
func (a *attempt) settle(ctx context.Context, sent core.Micros, err error) {
	s := a.store
	if err == nil {
		s.heard(sent)
	}
	for k, i := range a.from {
		switch {
		case a.parts[i].role == asks:
			a.granted(ctx, k, i, err)
		case err == nil:
			a.results[i] = a.answers[k]
		}
	}
	if err != nil || refused(a.asked, a.answers) {
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
	if err == nil {
		s.learnUses(sent, a.asked, a.answers)
	}
}

// granted hands on what check i, of which answer k is, was granted for others, and decides about those who wait.
func (a *attempt) granted(ctx context.Context, k, i int, err error) {
	s, p, r := a.store, &a.parts[i], &a.results[i]
	h := p.held
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	h.pins--
	answer := &a.answers[k]
	if err != nil {
		failure := shared(ctx, err)
		s.returned(h, &p.asking, answer, err, failure, failure == nil && ctx.Err() == nil)
	} else {
		s.returned(h, &p.asking, answer, nil, nil, answer.Granted == 0 && !answer.Refused)
		*r = *answer
		r.Granted = min(r.Granted, a.checks[i].Cost)
		r.Remaining = min(h.limit.Capacity(), r.Remaining+h.counter.Held(s.now()))
	}
	s.lookAfter(p.shard, h)
}

// returned tells a counter what became of a call, and decides about those who wait, as [Store.serve] says. If it was overtaken
// and has failed, they wait for the other one. The caller holds the lock.
func (s *Store) returned(h *held, asking *lease.Asking, r *core.Result, err, failure error, alone bool) {
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
