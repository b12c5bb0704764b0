// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// TickMillis is how often [Filter.Tick] is called while something waits: no request waits longer than two of them
// beyond its deadline.
const TickMillis = 10

// Ticks cost a processor in every worker, and most of them find nothing to do. So they come quickly while something waits and
// a moment longer, since to change the pace for each request would cost more; otherwise when the next thing is due.
const (
	tickFast   = TickMillis * core.Millisecond
	tickSlow   = core.Second // at most: a clock that is set forward holds nothing up for longer
	quietTicks = 10
)

// pace is how often the filter is called without a reason.
type pace struct {
	every core.Micros // 0: not at all yet
	quiet int         // ticks that have found nothing waiting since something did
}

// hurry makes ticks come quickly: something waits from now on.
//
//go:noinline
func (f *Filter) hurry() {
	f.pace.quiet = 0
	f.tickEvery(tickFast)
}

// slow chooses when the next tick comes.
func (f *Filter) slow() {
	if f.busy() {
		f.hurry()
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

// busy reports whether a deadline may end, or a call is to be made, at any time.
func (f *Filter) busy() bool {
	c, l := &f.calls, &f.leases
	return len(f.out.waiting)+len(f.arrivals.waiting)+len(c.waiting)+f.gates.lined+len(c.settling)+len(c.standing)+len(l.extras) > 0 ||
		c.flight != nil || c.probing
}

// tickEvery sets the pace. Where that fails the next occasion tries again.
func (f *Filter) tickEvery(every core.Micros) {
	defer f.guard()
	if f.pace.every != every && f.host.TickEvery(millis(every)) == nil {
		f.pace.every = every
	}
}
