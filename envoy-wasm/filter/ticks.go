// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// TickMillis is the interval in milliseconds at which [Filter.Tick] is called while anything waits.
// No request waits longer than two ticks beyond its deadline.
const TickMillis = 10

// Ticks take processor time in every worker, and most of them have nothing to do. Ticks are
// frequent while a request waits and for a short time afterwards, because changing the interval for
// each request would cost more. Otherwise the next tick comes when something is due.
const (
	tickFast = TickMillis * counter.Millisecond
	// the longest interval, and so the longest delay if the clock is set forward
	tickSlow   = counter.Second
	quietTicks = 10
)

// tickPace controls the interval of ticks.
type tickPace struct {
	every counter.Micros // 0 if there are no ticks yet
	quiet int            // consecutive ticks at which nothing was waiting
}

// quickenTicks makes ticks frequent, because something waits from now on.
//
//go:noinline
func (f *Filter) quickenTicks() {
	f.pace.quiet = 0
	f.tickEvery(tickFast)
}

// slowTicks chooses the time of the next tick.
func (f *Filter) slowTicks() {
	if f.isBusy() {
		f.quickenTicks()
		return
	}
	if f.pace.quiet++; f.pace.quiet < quietTicks {
		return
	}
	c, now, next := &f.calls, f.host.Now(), tickSlow
	if f.polls() && (!f.poll.under || f.poll.due > now) {
		next = min(next, f.poll.due-now)
	}
	if c.failures >= failuresMax {
		next = min(next, c.openTill-now)
	}
	if len(f.leases.ticking) > 0 {
		next = min(next, lease.TickEvery)
	}
	f.tickEvery(max(next, tickFast))
}

// isBusy reports whether a deadline might pass, or a call might become necessary, before the next
// slow tick.
func (f *Filter) isBusy() bool {
	c, l := &f.calls, &f.leases
	return len(f.out.waiting)+len(f.arrivals.waiting)+c.sources.queued+len(c.settling)+len(c.throttleQueue)+len(f.outdated)+len(l.extras) > 0 ||
		c.flight != nil || len(c.overdue) > 0 || c.probing
}

// tickEvery sets the interval of ticks. If the host fails, the next call tries again.
func (f *Filter) tickEvery(every counter.Micros) {
	defer f.guard()
	if f.pace.every != every && f.host.TickEvery(millis(every)) == nil {
		f.pace.every = every
	}
}
