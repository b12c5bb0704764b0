// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// WaitForLoans lets the requests of AskOrWait and TakeOrWait wait for units of other regions.
// WaitForLoans must be called before the first request. If l is nil, no request waits.
func (e *Enforcer) WaitForLoans(l *regionstore.Store) { e.loans = l }

// AskOrWait is like Ask, for a request that has a goroutine of its own. It stores the decision in
// d. If the request is denied only because this region has lent or used its units, it waits for at
// most a second until other regions lend some. If ctx ends meanwhile, the client has left: the
// result named gone is true, and nothing is charged.
func (e *Enforcer) AskOrWait(ctx context.Context, plan *core.Plan, checks []counter.Check, d *core.Decision) (gone bool, err error) {
	gone, err = e.TakeOrWait(ctx, context.Background(), Times{}, checks, plan.Results())
	decide(plan, d, gone, err)
	return gone, err
}

// decide decides a request whose client has not left.
func decide(plan *core.Plan, d *core.Decision, gone bool, err error) {
	switch {
	case gone:
	case err != nil:
		*d = plan.Fail(err)
	default:
		*d = plan.Decide()
	}
}

// Times bound the wait of a request for a loan. Instants that are zero bound nothing.
type Times struct {
	Wait time.Time // when the wait ends, at the latest
	Last time.Time // when the calls of the store after the wait must be answered
}

// TakeOrWait is like Take, but the request may wait for a loan, as in AskOrWait. The parameter
// named first is the context of the store call before a wait.
func (e *Enforcer) TakeOrWait(ctx, first context.Context, t Times, checks []counter.Check, results []counter.Result) (gone bool, err error) {
	behind := e.Behind(checks)
	if !behind {
		if err := e.Take(first, checks, results); err != nil || e.loans == nil || !regionstore.Lacks(checks, results) {
			return false, err
		}
	}
	last := context.Background()
	if !t.Last.IsZero() {
		var cancel context.CancelFunc
		last, cancel = context.WithDeadline(last, t.Last)
		defer cancel()
	}
	return e.await(ctx, last, t.Wait, checks, results, !behind)
}

// MayAwait reports whether a request may have to wait for a loan. It returns true if the request's
// client has not been read, because its checks are not known yet.
func (e *Enforcer) MayAwait(plan *core.Plan) bool {
	return e.loans != nil && (len(plan.Unresolved()) > 0 ||
		slices.ContainsFunc(plan.Checks(), func(c counter.Check) bool { return c.WholeLimit != nil }))
}

// Behind reports whether older requests are waiting for a loan to one of the checks' counters.
func (e *Enforcer) Behind(checks []counter.Check) bool {
	return e.loans != nil && e.loans.Behind(checks)
}

// Lacks reports whether the store's answer denies a request only for lack of units that other
// regions might lend.
func (e *Enforcer) Lacks(plan *core.Plan, checks []counter.Check) bool {
	return e.loans != nil && regionstore.Lacks(checks, plan.Results())
}

// WouldWait reports whether AwaitLoan would make a request wait. A front that cannot wait in the
// present call can then answer that the request needs a call of its own. The argument named taken
// is true if the store was called and denied the request. If taken is false, the request has to
// wait only if older requests wait for its counters.
func (e *Enforcer) WouldWait(plan *core.Plan, checks []counter.Check, taken bool) bool {
	return e.loans != nil && e.loans.WouldWait(checks, plan.Results(), taken)
}

// AwaitLoan is the second part of AskOrWait, for a request for which Lacks or Behind has returned
// true. The argument named taken is true if the store was called.
func (e *Enforcer) AwaitLoan(ctx context.Context, plan *core.Plan, checks []counter.Check, taken bool) (d core.Decision, gone bool, err error) {
	gone, err = e.await(ctx, context.Background(), time.Time{}, checks, plan.Results(), taken)
	decide(plan, &d, gone, err)
	return d, gone, err
}

// Enforcer.await waits for a loan. The argument named taking is the context of the store calls
// after a wait.
func (e *Enforcer) await(ctx, taking context.Context, until time.Time, checks []counter.Check, results []counter.Result, taken bool) (gone bool, err error) {
	end, err := e.loans.Await(ctx, until, checks, results, taken, func() error { return e.Take(taking, checks, results) })
	if end != regionstore.EndNone {
		e.metrics.LoanWaits.WithLabelValues(string(end)).Inc()
	}
	return end == regionstore.EndGone, err
}
