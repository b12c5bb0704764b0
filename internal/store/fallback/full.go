// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"errors"

	"github.com/penstock/penstock/core/counter"
)

// fullError is the error of a call that the store did not execute because it has no memory for the
// call's new counters. The store would execute the call without these counters.
type fullError interface {
	error
	Unsent() bool
	NewCounter(key []byte) bool
}

// fullOf returns the fullError that an error wraps, or nil if there is none.
func fullOf(err error) fullError {
	if err == nil {
		return nil
	}
	if full, ok := errors.AsType[fullError](err); ok && full.Unsent() {
		return full
	}
	return nil
}

// halves is a call in two halves. This process counts the new counters in memory, and the store
// counts the known ones. Both halves contain all checks of the call, because penalties refer to
// checks by index. A check charges nothing in the half to which it does not belong.
type halves struct {
	call  *counter.Call
	isNew []bool          // for each check whether its counter is new
	fresh []counter.Check // the half with the new counters
	known []counter.Check // the half with the known counters
	local localCall
	next  counter.Call // the call with the checks in known
	asked bool         // whether that call is sent in this round
}

// halves.divide divides the call. It returns false if the error names no further new counter of the
// call, or if no counter of the call is known.
func (h *halves) divide(full fullError) bool {
	checks := h.call.Checks
	h.fresh, h.known = append(h.fresh[:0], checks...), append(h.known[:0], checks...)
	if h.isNew == nil {
		h.isNew = make([]bool, len(checks))
	}
	found, known := false, false
	for i := range checks {
		c := &checks[i]
		if c.Limit != nil && full.NewCounter(c.Key) {
			found, h.isNew[i] = found || !h.isNew[i], true
		}
		if h.isNew[i] {
			h.known[i] = counter.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Op: counter.OpLook,
				Source: c.Source}
			continue
		}
		h.fresh[i].OnError = counter.OnErrorDeny // the fallback does not count such a check
		known = known || c.Limit != nil
	}
	return found && known
}

// canCount reports whether this process may count all new counters.
func (h *halves) canCount() bool {
	for i := range h.fresh {
		if c := &h.fresh[i]; h.isNew[i] && (c.Op > counter.OpUpTo || !counts(c)) {
			return false
		}
	}
	return true
}

// takeHalves completes those calls that the store did not execute because it has no memory for
// their new counters. The store counts the known counters, so a client cannot use units of a known
// counter again by adding a made-up name to each request. If a call cannot be divided, it is
// answered from memory.
func (s *Store) takeHalves(ctx context.Context, calls []counter.Call) {
	var all []*halves
	for i := range calls {
		if fullOf(calls[i].Err) != nil {
			all = append(all, &halves{call: &calls[i]})
		}
	}
	left := all
	for len(left) > 0 { // each round finds another new counter of each call that is left
		left = s.takeRound(ctx, left)
	}
	for _, h := range all {
		if call := h.call; call.Err != nil {
			call.Err = s.or(ctx, nil, call.Err, counter.Unsent(call.Err), call.Checks, call.Results)
		}
	}
}

// takeRound calls the store once for all calls. takeRound returns the calls that have another new
// counter.
func (s *Store) takeRound(ctx context.Context, all []*halves) (again []*halves) {
	sent := make([]counter.Call, 0, len(all))
	for _, h := range all {
		if h.asked = s.beginHalves(h); h.asked {
			sent = append(sent, h.next)
		}
	}
	s.send(ctx, sent)
	at := 0
	for _, h := range all {
		if !h.asked {
			continue
		}
		err := sent[at].Err
		at++
		if s.endHalves(h, err); fullOf(err) != nil {
			again = append(again, h)
		}
	}
	return again
}

// Store.send calls the store.
func (s *Store) send(ctx context.Context, calls []counter.Call) {
	if s.batcher != nil && len(calls) > 1 {
		s.batcher.TakeAll(ctx, calls)
		return
	}
	for i := range calls {
		calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// beginHalves charges the new counters of a call in memory. It returns true if the call can be
// divided and its new counters admit it. The store must then charge the known counters.
func (s *Store) beginHalves(h *halves) bool {
	call := h.call
	full := fullOf(call.Err)
	if full == nil || !h.divide(full) || !h.canCount() {
		return false
	}
	s.startTallies(h.fresh)
	s.catchUp(&h.local, h.fresh)
	err := h.local.take(s.local, h.fresh, call.Results, s.nodes())
	if err != nil || anyDenied(call.Checks, call.Results) {
		s.settleDoubt(h.fresh)
		if err == nil {
			s.completed(call)
		}
		return false
	}
	h.next = counter.Call{Checks: h.known, Results: make([]counter.Result, len(h.known))}
	return true
}

// endHalves completes a call after the store was called for its known counters. If the store failed
// or denied the call, endHalves removes the call's units from memory.
func (s *Store) endHalves(h *halves, err error) {
	call := h.call
	if err == nil {
		s.tally(h.known, h.next.Results)
	}
	if err != nil || anyDenied(h.known, h.next.Results) {
		h.local.undo(s.local)
		s.settleDoubt(h.fresh)
	} else {
		s.owe(&h.local, true, h.fresh, call.Results)
	}
	if err != nil {
		call.Err = err
		return
	}
	for i := range h.known {
		if !h.isNew[i] {
			call.Results[i] = h.next.Results[i]
		}
	}
	s.completed(call)
}

// Store.completed reports the error of a call that this process has answered, and clears it.
func (s *Store) completed(call *counter.Call) {
	if s.options.Failed != nil {
		s.options.Failed(call.Err)
	}
	call.Err = nil
}

// localCall.undo refunds the units that localCall.take has charged in the local store.
func (t *localCall) undo(local counter.Store) {
	for i := range t.checks {
		c, r := &t.checks[i], &t.results[i]
		if c.Limit == nil || c.Op != counter.OpTake || r.Granted <= 0 {
			continue
		}
		t.one[0] = *c
		t.one[0].Op, t.one[0].Cost, t.one[0].Receipt, t.one[0].Guard = counter.OpRefund, r.Granted, r.Receipt, 0
		// On an error the units remain counted.
		_ = local.Take(context.Background(), t.one[:], t.result[:])
	}
	t.one[0] = counter.Check{}
}
