// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"

	"github.com/penstock/penstock/core/counter"
)

// Corrections is the store that corrects charges when the response is known. It corrects both the
// charges of the shared store and those that this process made while the shared store did not
// answer. [Store.Corrections] returns one. It is safe for concurrent use.
//
// A further charge that the shared store has certainly not executed is kept as a debt, and
// [counter.Result.Local] is set in its result. The charge is also counted in memory, so the next
// request that this process decides takes the real cost into account. A refund of a charge that
// this process made reduces the debt. If the debt has already been charged in the shared store, the
// refund is made there.
type Corrections struct{ store *Store }

var _ counter.Batcher = Corrections{}

// Corrections returns the store that corrects charges.
func (s *Store) Corrections() Corrections { return Corrections{s} }

// Take implements [counter.Store].
func (c Corrections) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if refundsLocal(checks) {
		if checks = c.store.refundLocal(checks); len(checks) == 0 {
			return nil
		}
	}
	return c.finish(ctx, c.store.inner.Take(ctx, checks, results), checks, results)
}

// Corrections.finish completes a call. If the store did not execute the call because it has no
// memory for one of the call's counters, the counters are corrected one by one.
func (c Corrections) finish(ctx context.Context, err error, checks []counter.Check, results []counter.Result) error {
	if len(checks) == 1 || fullOf(err) == nil {
		return c.store.oweForced(err, checks, results)
	}
	var first error
	for i := range checks {
		one, result := checks[i:i+1], results[i:i+1]
		if err := c.store.oweForced(c.store.inner.Take(ctx, one, result), one, result); first == nil {
			first = err
		}
	}
	return first
}

// TakeAll implements [counter.Batcher].
func (c Corrections) TakeAll(ctx context.Context, calls []counter.Call) {
	plain := c.store.batcher != nil
	for i := range calls {
		plain = plain && !refundsLocal(calls[i].Checks)
	}
	if !plain {
		for i := range calls {
			calls[i].Err = c.Take(ctx, calls[i].Checks, calls[i].Results)
		}
		return
	}
	c.store.batcher.TakeAll(ctx, calls)
	for i := range calls {
		call := &calls[i]
		call.Err = c.finish(ctx, call.Err, call.Checks, call.Results)
	}
}

// refundsLocal reports whether one of the checks is a local refund.
func refundsLocal(checks []counter.Check) bool {
	for i := range checks {
		if checks[i].IsLocalRefund() {
			return true
		}
	}
	return false
}

// refundLocal refunds the charges that this process made. It returns the checks that remain for the
// shared store.
func (s *Store) refundLocal(checks []counter.Check) []counter.Check {
	t := localCalls.Get().(*localCall)
	defer localCalls.Put(t)
	rest := make([]counter.Check, 0, len(checks))
	for i := range checks {
		c := checks[i]
		if c.IsLocalRefund() {
			at := -c.Receipt
			if at == 0 {
				continue
			}
			s.refundInMemory(t, &c, at)
			c.Cost, c.Receipt = s.owed.refund(c.Key, s.options.Now(), at, c.Cost)
			if c.Cost == 0 {
				continue
			}
		}
		rest = append(rest, c)
	}
	return rest
}

// refundInMemory refunds units in the local store. Under on_error: local, the charge was multiplied
// by the number of nodes. The refund is not multiplied, because the number might have been smaller
// at the time of the charge.
func (s *Store) refundInMemory(t *localCall, c *counter.Check, at counter.Micros) {
	t.one[0] = *c
	t.one[0].Receipt = at
	// if a refund fails, the units remain counted
	_ = s.local.Take(context.Background(), t.one[:], t.result[:])
	if c.OnError == counter.OnErrorLocal {
		t.text = t.text[:0]
		t.one[0].Key = t.tallyKey(c)
		_ = s.local.Take(context.Background(), t.one[:], t.result[:])
	}
	t.one[0] = counter.Check{}
}

// oweForced completes a call of corrections. If the call failed, oweForced counts the call's
// further charges in memory. The charges that the shared store has certainly not executed become
// debts. oweForced returns nil if the call succeeded, or if all its checks became debts.
func (s *Store) oweForced(err error, checks []counter.Check, results []counter.Result) error {
	if err == nil {
		s.tally(checks, results)
		return nil
	}
	t := localCalls.Get().(*localCall)
	defer localCalls.Put(t)
	clear(results[:len(checks)])
	sure, all := counter.Unsent(err), true
	for i := range checks {
		c := &checks[i]
		if c.Op != counter.OpForce || !counts(c) {
			all = false
			continue
		}
		counted := s.force(t, c)
		owes := sure && counted && s.addDebt(c.Key, s.options.Now(), dueOf(c, &t.result[0], s.options.Now()))
		results[i].Local, all = owes, all && owes
	}
	if !all {
		return err
	}
	return nil
}

// Store.force counts a further charge in the local store, and reports whether it succeeded. The
// result is stored in t.
func (s *Store) force(t *localCall, c *counter.Check) bool {
	s.catchUpCheck(t, c)
	t.one[0] = *c
	if c.OnError == counter.OnErrorLocal {
		t.text = t.text[:0]
		t.one[0].Key = t.tallyKey(c)
		_ = s.local.Take(context.Background(), t.one[:], t.result[:]) // otherwise the units would be missing from the tally
		t.one[0].Key = c.Key
	}
	t.one[0].Cost = shareOf(c, share(c, s.nodes()))
	err := s.local.Take(context.Background(), t.one[:], t.result[:])
	t.one[0] = counter.Check{} // the key belongs to the caller
	return err == nil
}
