// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// waiter is a request that waits for the call under way for a counter. The lock of the counter's
// shard guards the waiter until it is decided. After that, the waiter belongs to its request.
type waiter struct {
	limit    *counter.Limit
	cost     int64
	since    counter.Micros // when it began to wait
	deadline time.Time
	next     *waiter

	decided bool
	// Admit, Deny or Ask; 0 means that the request makes its own call, as without leases
	verdict lease.Verdict
	held    lease.Held
	asking  lease.Call
	result  counter.Result
	err     error
	done    chan struct{} // receives one value, when the waiter is decided
	timer   *time.Timer
}

func newWaiter() any {
	w := &waiter{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

// heldCounter.push appends a waiter to the queue.
func (h *heldCounter) push(w *waiter) {
	if h.last == nil {
		h.first = w
	} else {
		h.last.next = w
	}
	h.last = w
}

// heldCounter.remove removes a waiter from the queue.
func (h *heldCounter) remove(w *waiter) {
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

// Store.serve decides the waiting requests after a call has returned. If failure is not nil,
// requests that need a call fail with it. The argument named alone reports that the call got no
// units for a reason that concerns only this call, such as another limit. Then each request that
// needs a call makes its own at once, and the last one also takes units for later requests. If each
// request waited for the call of the previous one instead, and another limit denied every call, the
// last request would wait for all the calls before its own. The caller holds the lock.
func (s *Store) serve(h *heldCounter, failure error, alone bool) {
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
		case failure == nil && time.Until(w.deadline) < s.responseTime():
			// The request makes no call: the answer would come too late for it, and the units that
			// it grants for other requests would be lost.
			w.err = s.late(h, w)
		default:
			w.ask(h, now, failure)
		}
		asks := w.verdict == lease.Ask && w.err == nil
		w.decided = true
		w.done <- struct{}{} // from this point on the waiter belongs to the request
		if asks {
			return // the other requests wait for that call
		}
	}
}

// waiter.ask lets the request call the store for its counter, or fails the request with the error
// of the call for which it waited.
func (w *waiter) ask(h *heldCounter, now counter.Micros, failure error) {
	if w.err = failure; failure != nil {
		return
	}
	if asking, ok := h.ask(now, w.limit, w.cost); ok {
		w.asking = asking
	} else {
		w.verdict = 0
	}
}

// sharedError returns the error of a call if the waiting requests must fail with it, because the
// store did not answer. sharedError returns nil for an error that concerns only this call and for a
// canceled caller, because the next call might succeed.
func sharedError(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !errors.Is(err, counter.ErrUnavailable) || errors.Is(err, counter.ErrStale) || full(err) {
		return nil
	}
	return err
}

// full reports whether the store did not execute a call because it has no memory for the call's new
// counters. Other requests might not need these counters; see package fallback.
func full(err error) bool {
	_, ok := errors.AsType[interface {
		error
		NewCounter(key []byte) bool
	}](err)
	return ok
}

// The errors of a request that has waited until its deadline.
var (
	errLate   = fmt.Errorf("%w: the call that this one waited for did not return in time", counter.ErrOverloaded)
	errSilent = fmt.Errorf("%w: the calls that this one waited for were not answered: %w", counter.ErrUnavailable,
		context.DeadlineExceeded) // one of the calls might have been sent with this request's units
)

// Store.late returns the error of a request that has waited for a counter until its deadline. The
// error is ErrUnavailable only if a call for the counter failed during the wait because the store
// did not answer. A call that has not returned might be in the inner store's queue, or this process
// might be late itself, and a client can cause both. The error is ErrOverloaded, too, if the store
// has answered another call recently, or one that was sent after the call for the counter. The
// caller holds the lock.
func (s *Store) late(h *heldCounter, w *waiter) error {
	lately := int64(s.now()) - (s.timeout / 2).Microseconds()
	switch {
	case h.failed < w.since || h.failed == 0, s.lastAnswered.Load() >= int64(h.asked),
		s.lastArrived.Load() > max(lately, int64(h.asked)):
		return errLate
	}
	return errSilent
}

// notSentError wraps the error of a call that was not sent, so the store has certainly not executed
// it.
type notSentError struct{ error }

// Unwrap returns the wrapped error.
func (e notSentError) Unwrap() error { return e.error }

// Unsent reports that the call was not sent; see package fallback.
func (e notSentError) Unsent() bool { return true }

// Store.await waits until the request is decided, its context is done, or its deadline passes. If
// the context is done or the deadline has passed, it returns an error; the request has then left
// the queue and holds nothing. If the call that the request waits for is overdue, the request makes
// another one.
func (s *Store) await(ctx context.Context, p *part, w *waiter) error {
	defer w.timer.Stop()
	for more := s.patience(p, w); ; {
		left := time.Until(w.deadline)
		w.timer.Reset(min(left, more))
		select {
		case <-w.done:
			return w.err
		case <-ctx.Done():
			return s.leave(p, w, contextError(ctx))
		case <-w.timer.C:
		}
		if left <= more {
			return s.leave(p, w, nil)
		}
		var over bool
		if more, over = s.overtake(p, w); over {
			<-w.done
			return w.err
		}
	}
}

// Store.leave removes a request from the queue and returns the reason why it stopped waiting. A nil
// err means that the request is late.
func (s *Store) leave(p *part, w *waiter, err error) error {
	sh, h := p.shard, p.held
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err == nil {
		err = s.late(h, w)
	}
	if !w.decided {
		h.remove(w)
		h.counter.Leave(w.cost)
		s.lookAfter(sh, h)
		return err
	}
	<-w.done // the request was decided at this moment
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

// Store.abandon gives up a prepared call that is not going to be made. The caller holds the lock.
func (s *Store) abandon(sh *shard, h *heldCounter, asking *lease.Call) {
	h.pins--
	if !h.counter.Overtaken(asking) {
		h.counter.CancelCall()
		s.serve(h, nil, false)
	}
	s.lookAfter(sh, h)
}
