// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/events"
)

// An outage is over when, for the time outageQuiet, no request was decided without the store. So an
// outage of one of several servers is logged as one outage, although the other servers answer
// requests meanwhile.
const outageQuiet = 2 * time.Second

// Outages logs outages of the store, and periods in which more requests wait for it than it can
// answer. Each outage is logged in two lines: one at its beginning, with the reason, and one at its
// end, with its length and the number of requests that were decided without the store. A nil
// *Outages logs nothing. The type is safe for concurrent use. Without an outage, a request costs
// one atomic load.
type Outages struct {
	logger *slog.Logger
	events *events.Log // nil if outages are not reported as events
	now    func() time.Time
	after  func(time.Duration, func()) // calls a function after the given time

	down, busy outage
}

// outage is the state of the current outage, or of the time until the next one.
type outage struct {
	under atomic.Bool  // whether an outage is under way
	last  atomic.Int64 // when a request was last decided without the store, in Unix nanoseconds
	armed atomic.Bool  // whether a check for the end is scheduled
	// whether the store has answered a request since the time in last
	answered atomic.Bool

	admitted, local, denied atomic.Int64 // requests decided without the store

	mu    sync.Mutex // guards began and changes of under
	began time.Time
}

// NewOutages returns outages that are logged to the logger.
func NewOutages(logger *slog.Logger) *Outages {
	return &Outages{logger: logger, now: time.Now, after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}
}

// Failed records an error of the store. Errors that concern only a single request do not begin an
// outage.
func (o *Outages) Failed(err error) {
	switch {
	case o == nil, errors.Is(err, counter.ErrInvalid), errors.Is(err, context.Canceled):
	case errors.Is(err, counter.ErrOverloaded):
		o.begin(&o.busy, "more requests wait for the store than it can answer, and are denied", err)
		o.busy.denied.Add(1)
		o.busy.last.Store(o.now().UnixNano())
		o.arm(&o.busy, o.endBusy)
	case errors.Is(err, counter.ErrUnavailable):
		o.begin(&o.down, "the store does not answer, on_error decides", err)
	}
}

// Outages.begin logs the beginning of an outage, unless it is under way.
func (o *Outages) begin(a *outage, text string, err error) {
	if a.under.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.under.Load() {
		return
	}
	a.began = o.now()
	a.last.Store(a.began.UnixNano())
	a.admitted.Store(0)
	a.local.Store(0)
	a.denied.Store(0)
	a.answered.Store(false)
	a.under.Store(true)
	o.logger.Warn(text, "error", err)
	o.events.Note(events.Event{Kind: events.KindDegraded, State: "began", Reason: err.Error()})
}

// Outages.recordDecision records a decided request.
func (o *Outages) recordDecision(plan *core.Plan) {
	if o == nil || !o.down.under.Load() {
		return
	}
	a := &o.down
	switch by := withoutStore(plan, a); {
	case by != nil:
		by.Add(1)
		a.last.Store(o.now().UnixNano())
		a.answered.Store(false)
	case len(plan.Checks()) > 0 && !a.answered.Load():
		a.answered.Store(true)
		o.arm(a, o.endDown)
	}
}

// withoutStore returns the counter for a request that was decided without the store, or nil if the
// store decided.
func withoutStore(plan *core.Plan, a *outage) *atomic.Int64 {
	degraded, denied, local := false, false, false
	for _, outcome := range plan.Outcomes() {
		switch outcome.Outcome {
		case core.OutcomeDegradedLocal:
			degraded, local = true, true
		case core.OutcomeDegradedAllowed:
			degraded = true
		case core.OutcomeDegradedDenied:
			degraded, denied = true, true
		case core.OutcomeDenied, core.OutcomePenalized:
			denied = true
		}
	}
	for i := range plan.Results() {
		degraded = degraded || plan.Results()[i].Local
	}
	switch {
	case !degraded:
		return nil
	case denied:
		return &a.denied
	case local:
		return &a.local
	}
	return &a.admitted
}

// Outages.arm schedules a check for the end of an outage, unless one is scheduled already.
func (o *Outages) arm(a *outage, check func()) {
	if !a.armed.Swap(true) {
		o.after(outageQuiet, check)
	}
}

// endDown ends an outage of the store if it is over. An outage is not over until the store has
// answered, however few requests there are.
func (o *Outages) endDown() {
	a := &o.down
	a.armed.Store(false)
	switch length, over := o.end(a); {
	case !a.answered.Load():
	case !over:
		o.arm(a, o.endDown)
	default:
		admitted, local, denied := a.admitted.Load(), a.local.Load(), a.denied.Load()
		o.logger.Warn("the store answers again", "outage", length, "requests", admitted+local+denied, "admitted", admitted,
			"admitted_locally", local, "denied", denied)
		o.reportEnd(length, uint64(admitted+local+denied))
	}
}

// endBusy ends a period of too many requests if it is over.
func (o *Outages) endBusy() {
	a := &o.busy
	a.armed.Store(false)
	length, over := o.end(a)
	if !over {
		o.arm(a, o.endBusy)
		return
	}
	o.logger.Warn("the store answers all requests again", "overload", length, "denied", a.denied.Load())
	o.reportEnd(length, uint64(a.denied.Load()))
}

// Outages.reportEnd reports the end of an outage as an event, with the number of requests that were
// decided without the store.
func (o *Outages) reportEnd(length time.Duration, requests uint64) {
	millis := max(1, length.Milliseconds()) // because an event omits a length of 0
	o.events.Note(events.Event{Kind: events.KindDegraded, State: "ended", Seconds: float64(millis) / 1000, Count: requests})
}

// Outages.end ends the outage if no request was decided without the store during outageQuiet, and
// if the store has answered since. It returns how long the outage lasted.
func (o *Outages) end(a *outage) (length time.Duration, over bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := time.Unix(0, a.last.Load())
	if a == &o.down && !a.answered.Load() || o.now().Sub(last) < outageQuiet {
		return 0, false
	}
	a.under.Store(false)
	return last.Sub(a.began).Round(time.Millisecond), true
}
