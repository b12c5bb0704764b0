// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"sync"

	"github.com/penstock/penstock/core"
)

// trials holds plans that serve only to determine how a waiting request would be decided now.
var trials = sync.Pool{New: func() any { return new(core.Plan) }}

// deniedMeanwhile reports whether the request is now denied, whatever the store answers, because
// its client was blocked or its key was revoked while it waited. If the request is denied, the
// wait's plan is made again, and denies the request. Otherwise the plan is not changed, because the
// results of the store belong to it.
func (w *Wait) deniedMeanwhile() bool {
	trial := trials.Get().(*core.Plan)
	w.asker.Replan(trial)
	denied := isDeniedAlready(trial)
	trial.Abandon()
	trial.Reset()
	trials.Put(trial)
	if !denied {
		return false
	}
	w.plan.Retry()
	if w.asker.Replan(w.plan); !isDeniedAlready(w.plan) {
		w.plan.DenyUnread() // the client was unblocked at this moment
	}
	return true
}

// isDeniedAlready reports whether a plan denies its request without the store.
func isDeniedAlready(p *core.Plan) bool {
	if len(p.Checks()) > 0 {
		return false
	}
	d := p.Decide()
	return d.Denied()
}
