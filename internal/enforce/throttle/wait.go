// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
)

// pollMin is the least time between two store calls of a waiting request. pollMin is needed because
// the clocks of store and node differ a little, and another node might take the expected unit
// first.
const pollMin = time.Millisecond

// End is how a wait ended, by its name in metrics.
type End string

// The ends of a wait.
const (
	EndNone     End = ""         // the request was decided without a wait
	EndAdmitted End = "admitted" // the request was admitted
	EndDenied   End = "refused"  // another limit or a block denied it, or the store did not answer
	EndLate     End = "late"     // max_delay has passed, or would pass before its turn
	EndFull     End = "full"     // max_waiting requests are already waiting
	EndGone     End = "gone"     // the client has disconnected
)

// Asker decides one request. Ask sends checks to the store, writes the results to the plan, and
// decides from them. The checks are those of the plan, or the same number of other checks. The
// result named answered is false if the store did not answer and on_error decided.
type Asker interface {
	Ask(checks []counter.Check) (d core.Decision, answered bool)
	// Replan adds the request to an empty plan. Replan uses the data about the client at this
	// moment, so a block that was set after the first plan takes effect.
	Replan(p *core.Plan)
}

// Wait decides one request under throttle rules, that is, one whose plan has Throttled checks. A
// Wait can be reused for another request and keeps its buffers.
type Wait struct {
	queues       *Queues
	plan         *core.Plan
	asker        Asker
	throttled    []core.Throttled
	lookupChecks []counter.Check // the plan's checks as lookups
	looked       bool
	at           time.Time // when the store last answered
	until        time.Time // when the shortest max_delay ends
	askAfter     time.Time // the time before which a store call would be useless
}

// First returns the checks to send to the store first.
//
// If the request need not queue for a counter (see [Queues.Busy]), First returns its own checks. If
// the store denies them, the request starts to wait. If the request has to queue, First returns
// lookups. If they show that a limit without throttle denies the request, the request is answered
// at once. If no such limit denies it, the request joins the end of a queue.
//
// A queued request takes its units only when each older request that waits for one of its limits is
// asking the store too. So a request never gets units ahead of older requests under the same limit,
// except while their calls are under way together.
func (w *Wait) First(lines *Queues, plan *core.Plan, throttled []core.Throttled) []counter.Check {
	*w = Wait{queues: lines, plan: plan, throttled: throttled, lookupChecks: w.lookupChecks}
	if w.busy() {
		return w.lookups()
	}
	return plan.Checks()
}

// mustWait reports whether the request has to wait, given the store's first answer. If the request
// does not have to wait, the decision is final.
func (w *Wait) mustWait(first core.Decision, asker Asker) (d core.Decision, answered, waits bool) {
	switch {
	case !first.Denied():
		return first, true, w.looked
	case first.Delay > 0:
		return first, true, true
	case w.looked && w.hasGuard():
		// The lookup has not recorded this denial as a violation, so the request's own checks
		// follow.
		d, answered = asker.Ask(w.plan.Checks())
		return d, answered, false
	}
	return first, true, false
}

// Decide decides a request that might have to wait, and blocks until it is decided. If the end is
// [EndGone], the client has left and nothing was charged. With any other end there is a decision,
// made from the plan's results.
func (w *Wait) Decide(ctx context.Context, lines *Queues, plan *core.Plan, throttled []core.Throttled, asker Asker) (core.Decision, End) {
	first := w.First(lines, plan, throttled)
	w.asker = asker
	d, end := w.decide(ctx, first)
	if d.Delay > 0 {
		plan.Abandon()
	}
	return d, end
}

// Wait.decide calls the store, and waits if the request has to.
func (w *Wait) decide(ctx context.Context, first []counter.Check) (core.Decision, End) {
	d, answered := w.asker.Ask(first)
	switch {
	case answered:
		var waits bool
		if d, _, waits = w.mustWait(d, w.asker); !waits {
			return d, EndNone
		}
	case !w.Unanswered(&d):
		return d, EndNone
	}
	w.at = time.Now()
	w.askAfter = w.at.Add(span(d.Delay))
	w.until = w.at.Add(w.maxWait())
	return w.waitInQueue(ctx, w.left(w.places(), answered))
}

// Announce decides a request without waiting. If the request has to wait, the decision has a delay,
// and the caller must make another call that waits. The argument named first is the decision from
// the store's answer to the checks of First. The result named answered is false if the store was
// called again and did not answer.
func (w *Wait) Announce(first core.Decision, asker Asker) (d core.Decision, answered bool) {
	d, answered, waits := w.mustWait(first, asker)
	if waits && !d.Denied() { // there is room, but older requests wait for that room
		d = w.delay()
	}
	if d.Delay > 0 {
		w.plan.Abandon()
	}
	return d, answered
}

// Unanswered handles the failure of the call with the checks of First. If these checks were
// lookups, the request has not been counted, because lookups charge nothing. A request that
// on_error would admit then waits behind older ones, and is counted when its turn comes, by the
// store or by the fallback. If on_error admitted such requests at once, one late call of each would
// admit a whole queue. Unanswered reports whether the request waits; in that case d is the
// decision, with a delay. Otherwise d is unchanged.
func (w *Wait) Unanswered(d *core.Decision) (waits bool) {
	if !w.looked || d.Denied() {
		return false
	}
	results, now := w.plan.Results(), counter.Micros(time.Now().UnixMicro())
	for i := range results {
		results[i].At = now
	}
	*d = w.delay()
	return true
}

// Wait.delay returns the decision about a request that has to wait although its limits have room,
// or might have.
func (w *Wait) delay() core.Decision {
	results := w.plan.Results()
	for _, t := range w.throttled {
		results[t.Check].Denied, results[t.Check].Wait = true, max(results[t.Check].Wait, micros(pollMin))
	}
	return w.plan.Decide()
}

// waitInQueue waits until the request is admitted or can no longer be admitted. The request is in
// one queue at a time, that of the counter for which it has to wait longest. So a client's own
// limit delays only that client. In every queue younger requests are behind it, so it waits only
// for older ones and for calls under way, and no two requests wait for each other.
func (w *Wait) waitInQueue(ctx context.Context, places []Place) (d core.Decision, end End) {
	ticket := w.queues.Join(places[w.longest()])
	if ticket == nil {
		return w.deny(), EndFull
	}
	defer ticket.Leave()
	timer := time.NewTimer(time.Until(w.until))
	defer timer.Stop()
	for {
		if end = w.waitTurn(ctx, ticket, timer); end != EndNone {
			return w.deny(), end
		}
		next := ticket.Ask(places)
		if next < 0 {
			if w.deniedMeanwhile() {
				return w.plan.Decide(), EndDenied
			}
			var answered bool
			d, answered = w.asker.Ask(w.plan.Checks())
			ticket.Answered(w.left(places, answered))
			switch {
			case !d.Denied():
				w.plan.Delayed()
				return d, EndAdmitted
			case !answered, d.Delay == 0:
				return d, EndDenied
			}
			w.at = time.Now()
			if w.askAfter = w.at.Add(span(d.Delay)); w.askAfter.After(w.until) {
				return d, EndLate
			}
			next = w.longest()
		}
		if !ticket.Move(places[next]) {
			return w.deny(), EndFull
		}
	}
}

// waitTurn waits for the ticket's turn, and then until a store call is useful. Meanwhile the ticket
// stays first in its queue, so no younger one asks the store.
func (w *Wait) waitTurn(ctx context.Context, ticket *Ticket, timer *time.Timer) End {
	timer.Reset(time.Until(w.until))
	select {
	case <-ticket.Turn():
	case <-timer.C:
		return EndLate
	case <-ctx.Done():
		return EndGone
	}
	if delay := time.Until(w.askAfter); delay > 0 {
		timer.Reset(max(delay, pollMin))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return EndGone
		}
	}
	return EndNone
}

// Wait.longest returns the index of the throttled check for which to wait: the one with the longest
// wait in the store's last answer. If no check denies, longest returns the index of the first
// throttled check. From the queue of that check, the request moves to a queue in which other
// requests wait.
func (w *Wait) longest() (longest int) {
	results, most := w.plan.Results(), counter.Micros(-1)
	for i, t := range w.throttled {
		if result := &results[t.Check]; result.Denied && result.Wait > most {
			longest, most = i, result.Wait
		}
	}
	return longest
}

// Wait.busy reports whether the request has to queue for one of the counters.
func (w *Wait) busy() bool {
	checks := w.plan.Checks()
	for _, t := range w.throttled {
		if c := &checks[t.Check]; w.queues.Busy(c.Key, c.Limit, c.Cost) {
			return true
		}
	}
	return false
}

// maxWait returns how long the request may wait: the shortest max_delay of its rules.
func (w *Wait) maxWait() time.Duration {
	shortest := w.throttled[0].Throttle.MaxDelay
	for _, t := range w.throttled {
		shortest = min(shortest, t.Throttle.MaxDelay)
	}
	return span(shortest)
}

func (w *Wait) places() []Place {
	checks := w.plan.Checks()
	places := make([]Place, len(w.throttled))
	for i, t := range w.throttled {
		c := &checks[t.Check]
		places[i] = Place{Key: c.Key, Limit: *c.Limit, Max: t.Throttle.MaxWaiting, Cost: c.Cost, Source: c.Source}
	}
	return places
}

// Wait.left sets in each place how many units the counter has left according to the last answer. If
// there was no answer, nothing is known to be left.
func (w *Wait) left(places []Place, answered bool) []Place {
	results := w.plan.Results()
	for i, t := range w.throttled {
		places[i].Left = 0
		if answered {
			places[i].Left = results[t.Check].Remaining
		}
	}
	return places
}

// Wait.deny denies a request because the queue is full or its turn did not come in time.
// Retry-After is max_delay, because every request that is waiting now has left the queue by then.
//
// It advances the store's answer to now, so that the response does not contain instants in the
// past.
func (w *Wait) deny() core.Decision {
	results, waited := w.plan.Results(), micros(time.Since(w.at))
	for i := range results {
		result := &results[i]
		result.At += waited
		result.Reset, result.Next = max(0, result.Reset-waited), max(0, result.Next-waited)
	}
	for _, t := range w.throttled {
		result := &results[t.Check]
		result.Denied, result.Wait = true, max(result.Wait, t.Throttle.MaxDelay)
	}
	return w.plan.Decide()
}

// Wait.lookups returns the plan's checks as lookups, which charge nothing.
func (w *Wait) lookups() []counter.Check {
	w.looked = true
	w.lookupChecks = append(w.lookupChecks[:0], w.plan.Checks()...)
	for i := range w.lookupChecks {
		w.lookupChecks[i].Op = counter.OpLook
	}
	return w.lookupChecks
}

// Wait.hasGuard reports whether a denial can be a violation.
func (w *Wait) hasGuard() bool {
	for i := range w.lookupChecks {
		if w.lookupChecks[i].Guard > 0 {
			return true
		}
	}
	return false
}

func span(m counter.Micros) time.Duration { return time.Duration(m) * time.Microsecond }

func micros(d time.Duration) counter.Micros { return counter.Micros(d / time.Microsecond) }
