// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"slices"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// WaitForLoans lets the requests of AskOrWait wait for units of other regions. WaitForLoans must be
// called before the first request. If l is nil, no request waits.
func (e *Enforcer) WaitForLoans(l *regionstore.Store) { e.loans = l }

// AskOrWait is Ask for a request in a goroutine of its own. If the request is denied only because
// this region has lent or used its units, it waits for at most a second until other regions lend
// some. If ctx ends meanwhile, the client has left: gone is true, and nothing is charged.
func (e *Enforcer) AskOrWait(ctx context.Context, plan *core.Plan, checks []counter.Check) (d core.Decision, gone bool, err error) {
	behind := e.Behind(checks)
	if !behind {
		if d, err = e.Ask(plan, checks); err != nil || !e.Lacks(plan, checks) {
			return d, false, err
		}
	}
	return e.AwaitLoan(ctx, plan, checks, !behind)
}

// MayAwait reports whether a request may have to wait for a loan. The checks of a request whose
// client is not read yet are not known, so such a request may.
func (e *Enforcer) MayAwait(plan *core.Plan) bool {
	return e.loans != nil && (len(plan.Unresolved()) > 0 ||
		slices.ContainsFunc(plan.Checks(), func(c counter.Check) bool { return c.WholeLimit != nil }))
}

// Behind reports whether older requests wait for a loan of a counter of the checks.
func (e *Enforcer) Behind(checks []counter.Check) bool {
	return e.loans != nil && e.loans.Behind(checks)
}

// Lacks reports whether the store's answer denies a request only for lack of units that other
// regions might lend.
func (e *Enforcer) Lacks(plan *core.Plan, checks []counter.Check) bool {
	return e.loans != nil && regionstore.Lacks(checks, plan.Results())
}

// AwaitLoan is the second part of AskOrWait, for a request for which Lacks or Behind has returned
// true. taken reports whether the store was called.
func (e *Enforcer) AwaitLoan(ctx context.Context, plan *core.Plan, checks []counter.Check, taken bool) (d core.Decision, gone bool, err error) {
	end, err := e.loans.Await(ctx, checks, plan.Results(), taken, func() error {
		return e.Take(context.Background(), checks, plan.Results())
	})
	if end != regionstore.EndNone {
		e.metrics.LoanWaits.WithLabelValues(string(end)).Inc()
	}
	switch {
	case end == regionstore.EndGone:
		return d, true, nil
	case err != nil:
		return plan.Fail(err), false, err
	}
	return plan.Decide(), false, nil
}
