// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// waiter is a request that waits for the call that is under way for a counter. The lock of the counter's shard guards it
// until it is decided; then it is its own.
type waiter struct {
	limit    *core.Limit
	cost     int64
	deadline time.Time
	next     *waiter

	decided bool
	verdict lease.Verdict // Admit, Deny, Ask, or 0: it asks for itself, as without a lease
	held    lease.Held
	asking  lease.Asking
	result  core.Result
	err     error
	done    chan struct{} // receives once, when it is decided
	timer   *time.Timer
}

func newWaiter() any {
	w := &waiter{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

// push puts a waiter at the end of the queue.
func (h *held) push(w *waiter) {
	if h.last == nil {
		h.first = w
	} else {
		h.last.next = w
	}
	h.last = w
}

// remove takes a waiter out of the queue.
func (h *held) remove(w *waiter) {
	var before *waiter
	for at := h.first; at != nil; before, at = at, at.next {
		if at != w {
			continue
		}
		if before == nil {
			h.first = w.next
		} else {
			before.next = w.next
		}
		if h.last == w {
			h.last = before
		}
		w.next = nil
		return
	}
}

// serve decides about those who wait, once a call has returned. failure is what became of it, if they fail with it. alone
// says that it came to nothing for a reason of its own, such as another limit: then each of those who must still ask does so
// for itself, at once, and the last for those to come. One after the other, of many whom something else refuses, the last
// would wait for as many calls. The caller holds the lock.
func (s *Store) serve(h *held, failure error, alone bool) {
	for h.first != nil {
		w, now := h.first, s.now()
		v, units := h.counter.Serve(now, w.limit, w.cost)
		if v == lease.Wait {
			return
		}
		h.remove(w)
		w.verdict, w.held, w.err = v, units, nil
		switch {
		case v != lease.Ask:
			h.counter.Answer(now, w.cost, v, &w.result)
			w.result.Receipt = units.Receipt
		case alone && h.first != nil:
			w.verdict = 0
		case failure == nil && time.Until(w.deadline) < s.away():
			w.err = errLate // the answer would be, and what it brings for all would be lost
		default:
			w.ask(h, now, failure)
		}
		asks := w.verdict == lease.Ask && w.err == nil
		w.decided = true
		w.done <- struct{}{} // from here on it is its own
		if asks {
			return // the others wait for that call
		}
	}
}

// ask makes the request the one that asks, or has it fail with the call that it waited for.
func (w *waiter) ask(h *held, now core.Micros, failure error) {
	if w.err = failure; failure != nil {
		return
	}
	if asking, ok := h.ask(now, w.limit, w.cost); ok {
		w.asking = asking
	} else {
		w.verdict = 0
	}
}

// shared returns the error of a call if those who waited for it fail with it: the store did not answer. What is wrong with
// one call, or that its caller gave up, says nothing about the next.
func shared(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !errors.Is(err, core.ErrUnavailable) || errors.Is(err, core.ErrStale) {
		return nil
	}
	return err
}

// errLate is the error of who has waited in vain until its deadline.
var errLate = fmt.Errorf("%w: the call that this one waited for did not return in time: %w", core.ErrUnavailable,
	context.DeadlineExceeded)

// await waits until the request is decided, its context is done or its time is over. It returns the error of the latter
// two; the request is out of the queue then and holds nothing. If the call that it waits for is overdue, it makes another one.
func (s *Store) await(ctx context.Context, p *part, w *waiter) error {
	defer w.timer.Stop()
	for more := s.patience(p, w); ; {
		left := time.Until(w.deadline)
		w.timer.Reset(min(left, more))
		select {
		case <-w.done:
			return w.err
		case <-ctx.Done():
			return s.leave(p, w, fmt.Errorf("%w: %w", core.ErrUnavailable, context.Cause(ctx)))
		case <-w.timer.C:
		}
		if left <= more {
			return s.leave(p, w, errLate)
		}
		var over bool
		if more, over = s.overtake(p, w); over {
			<-w.done
			return w.err
		}
	}
}

// leave takes a request out of the queue that waits no longer, and returns why.
func (s *Store) leave(p *part, w *waiter, err error) error {
	sh, h := p.shard, p.held
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !w.decided {
		h.remove(w)
		h.counter.Leave(w.cost)
		s.lookAfter(sh, h)
		return err
	}
	<-w.done // it was decided in this very moment
	switch {
	case w.err != nil || h.id != p.id:
	case w.verdict == lease.Admit || w.verdict == lease.AdmitAsk:
		h.counter.PutBack(s.now(), w.cost, w.held)
		s.lookAfter(sh, h)
	case w.verdict == lease.Ask:
		s.abandon(sh, h, &w.asking)
	}
	return err
}

// abandon ends an asking whose call is not made. The caller holds the lock.
func (s *Store) abandon(sh *shard, h *held, asking *lease.Asking) {
	h.pins--
	if !h.counter.Overtaken(asking) {
		h.counter.Unasked()
		s.serve(h, nil, false)
	}
	s.lookAfter(sh, h)
}
