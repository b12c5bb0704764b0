// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// A request that lacks units waits in a call of its own until other regions lend some. In a call
// with other questions, such a request is answered with [wire.StatusLoan] at once, and the filter
// asks again. So the other requests of a call never wait for it.

// loanWait bounds the wait of a question for a loan.
const loanWait = time.Duration(wire.LoanWait) * time.Microsecond

// question.postpones reports whether the request of a question would wait for a loan, in a call of
// its own. The argument named taken reports whether the store was called and denied the request. If
// taken is false, the request has to wait only if older requests wait for its counters.
func (q *question) postpones(taken bool) bool {
	return q.loans && (q.item.Kind == wire.KindAsk || q.item.Kind == wire.KindLease) && len(q.throttled) == 0 &&
		q.bridge.enforcer.WouldWait(&q.plan, q.plan.Checks(), taken) && !q.plan.Unchecked()
}

// question.take calls the store for a question that may wait. The result named gone reports whether
// ctx has ended during the wait. If so, nothing is charged.
func (q *question) take(ctx context.Context) (gone bool, err error) {
	return q.bridge.enforcer.TakeOrWait(ctx, context.Background(), enforce.Times{Wait: time.Now().Add(loanWait)}, q.first, q.results())
}

// waitForLoan answers the only question of a call. The context named waiting ends when the context
// named caller ends, and when the bridge stops. waitForLoan returns false if the caller has
// disconnected.
func (q *question) waitForLoan(caller, waiting context.Context) (answered bool) {
	gone, err := q.take(waiting)
	switch {
	case gone && caller.Err() != nil:
		return false
	case gone: // the bridge is stopping
		err = q.bridge.enforcer.Take(context.Background(), q.first, q.results())
	}
	q.decide(err)
	return true
}

// takeJSON decides the request of a JSON call, which waits for a loan if it has to. Meanwhile the
// call does not count towards CallsMax. The error is errGone if the caller has left.
func (q *question) takeJSON(ctx context.Context) (d core.Decision, err error) {
	if q.bridge.enforcer.MayAwait(&q.plan) {
		q.bridge.under.Add(-1)
		defer q.bridge.under.Add(1)
	}
	gone, err := q.take(ctx)
	if gone {
		return d, errGone
	}
	return q.decide(err), nil
}
