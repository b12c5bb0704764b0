// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"context"
	"time"

	"github.com/penstock/penstock/core"
)

// pollMin is the least time between two questions of a waiting request: the clocks of store and node are never quite
// alike, and a unit that another node was quicker to take makes the wait begin again.
const pollMin = time.Millisecond

// End says how a wait ended, as metrics name it.
type End string

// The ends of a wait.
const (
	EndNone     End = ""         // the request was decided without a wait
	EndAdmitted End = "admitted" // it was let go on
	EndRefused  End = "refused"  // by another limit meanwhile, or the store did not answer
	EndLate     End = "late"     // max_delay is over, or would be
	EndFull     End = "full"     // max_waiting
	EndGone     End = "gone"     // the client has left
)

// Asker asks the store the checks, which are those of the plan or as many, fills in the plan's results, and decides by
// them. answered is false if the store did not answer, so that on_error decided.
type Asker interface {
	Ask(checks []core.Check) (d core.Decision, answered bool)
}

// Wait is a request under throttle rules, whose plan has Throttled. It may be used again for another request, and keeps its
// buffers then.
type Wait struct {
	lines     *Lines
	plan      *core.Plan
	asker     Asker
	throttled []core.Throttled
	looking   []core.Check // the plan's checks as looks
	looked    bool
	at        time.Time // when the store answered last
	until     time.Time // when the shortest max_delay is over
	due       time.Time // before that it is not worth asking again
}

// First returns what to ask the store first about a request.
//
// While nobody waits, a request is asked about as any other is, and waits if it was refused. While somebody does, it is
// looked at, so that one that another limit refuses is told at once, and then goes to the end of a line. It asks for its
// units when nobody who came before waits for one of its counters, so none are taken ahead of them.
func (w *Wait) First(lines *Lines, plan *core.Plan, throttled []core.Throttled) []core.Check {
	*w = Wait{lines: lines, plan: plan, throttled: throttled, looking: w.looking}
	if w.busy() {
		return w.looks()
	}
	return plan.Checks()
}

// waits reports whether the request has to wait, by what the store said first. If not, the decision is final.
func (w *Wait) waits(first core.Decision, asker Asker) (d core.Decision, answered, waits bool) {
	switch {
	case !first.Refused():
		return first, true, w.looked
	case first.Delay > 0:
		return first, true, true
	case w.looked && w.guarded():
		d, answered = asker.Ask(w.plan.Checks()) // a refusal that counts as a violation is recorded by a take only
		return d, answered, false
	}
	return first, true, false
}

// Decide decides a request that may have to wait, and returns when it is decided. After [EndGone] there is nobody to answer
// and nothing was charged; any other end comes with a decision, by the plan's results.
func (w *Wait) Decide(ctx context.Context, lines *Lines, plan *core.Plan, throttled []core.Throttled, asker Asker) (core.Decision, End) {
	first := w.First(lines, plan, throttled)
	w.asker = asker
	d, end := w.decide(ctx, first)
	if d.Delay > 0 {
		plan.GiveUp()
	}
	return d, end
}

// decide asks the store first, and waits if the request has to.
func (w *Wait) decide(ctx context.Context, first []core.Check) (core.Decision, End) {
	d, answered := w.asker.Ask(first)
	if !answered {
		return d, EndNone
	}
	d, _, waits := w.waits(d, w.asker)
	if !waits {
		return d, EndNone
	}
	w.at = time.Now()
	w.due = w.at.Add(span(d.Delay))
	w.until = w.at.Add(w.patience())
	return w.stand(ctx, w.places())
}

// Announce decides a request that another call will wait for, if it has to wait: the plan's results then refuse it, with a
// delay that says so. The store has answered what First returned, and first is the decision by that. answered is false if
// the store was asked again and did not answer.
func (w *Wait) Announce(first core.Decision, asker Asker) (d core.Decision, answered bool) {
	d, answered, waits := w.waits(first, asker)
	if waits && !d.Refused() { // there would be room, but others wait for it
		results := w.plan.Results()
		for _, t := range w.throttled {
			results[t.Check].Refused, results[t.Check].Wait = true, max(results[t.Check].Wait, micros(pollMin))
		}
		d = w.plan.Decide()
	}
	if d.Delay > 0 {
		w.plan.GiveUp()
	}
	return d, answered
}

// stand waits until the request is admitted, or cannot be. It stands in one line at a time, that of the counter that it has
// to wait for longest: so its own limit holds up nobody who has another. Wherever it comes to stand, whoever came later is
// behind it, so it waits for those only that came before, and two never wait for each other.
func (w *Wait) stand(ctx context.Context, places []Place) (d core.Decision, end End) {
	ticket := w.lines.Join(places[w.longest()])
	if ticket == nil {
		return w.refuse(), EndFull
	}
	defer ticket.Leave()
	timer := time.NewTimer(time.Until(w.until))
	defer timer.Stop()
	for {
		if end = w.turn(ctx, ticket, timer); end != EndNone {
			return w.refuse(), end
		}
		next := ticket.Behind(places)
		if next < 0 {
			var answered bool
			d, answered = w.asker.Ask(w.plan.Checks())
			switch {
			case !d.Refused():
				w.plan.Delayed()
				return d, EndAdmitted
			case !answered, d.Delay == 0:
				return d, EndRefused
			}
			w.at = time.Now()
			if w.due = w.at.Add(span(d.Delay)); w.due.After(w.until) {
				return d, EndLate
			}
			next = w.longest()
		}
		if !ticket.Move(places[next]) {
			return w.refuse(), EndFull
		}
	}
}

// turn waits until the ticket is the first in its line, and then until it is worth asking.
func (w *Wait) turn(ctx context.Context, ticket *Ticket, timer *time.Timer) End {
	timer.Reset(time.Until(w.until))
	select {
	case <-ticket.Turn():
	case <-timer.C:
		return EndLate
	case <-ctx.Done():
		return EndGone
	}
	if delay := time.Until(w.due); delay > 0 {
		timer.Reset(max(delay, pollMin))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return EndGone
		}
	}
	return EndNone
}

// longest returns the number of the throttled check to wait for: the one that refuses longest, by what the store said last.
// If none does it is the first, and from there the request goes to where others wait.
func (w *Wait) longest() (longest int) {
	results, most := w.plan.Results(), core.Micros(-1)
	for i, t := range w.throttled {
		if result := &results[t.Check]; result.Refused && result.Wait > most {
			longest, most = i, result.Wait
		}
	}
	return longest
}

// busy reports whether somebody waits for one of the counters.
func (w *Wait) busy() bool {
	checks := w.plan.Checks()
	for _, t := range w.throttled {
		if w.lines.Busy(checks[t.Check].Key) {
			return true
		}
	}
	return false
}

// patience is how long the request may wait: under several rules as long as every one of them lets it.
func (w *Wait) patience() time.Duration {
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
		places[i] = Place{Key: checks[t.Check].Key, Max: t.Throttle.MaxWaiting}
	}
	return places
}

// refuse decides against a request for the line alone: it is full, or the turn did not come in time. By the time its
// client is told to come back, everybody who stands there now has left.
//
// What the store answered is brought to the present, or the client would be told instants that have passed.
func (w *Wait) refuse() core.Decision {
	results, waited := w.plan.Results(), micros(time.Since(w.at))
	for i := range results {
		result := &results[i]
		result.At += waited
		result.Reset, result.Next = max(0, result.Reset-waited), max(0, result.Next-waited)
	}
	for _, t := range w.throttled {
		result := &results[t.Check]
		result.Refused, result.Wait = true, max(result.Wait, t.Throttle.MaxDelay)
	}
	return w.plan.Decide()
}

// looks returns the plan's checks as questions that charge nothing.
func (w *Wait) looks() []core.Check {
	w.looked = true
	w.looking = append(w.looking[:0], w.plan.Checks()...)
	for i := range w.looking {
		w.looking[i].Op = core.OpLook
	}
	return w.looking
}

// guarded reports whether a refusal may be a violation.
func (w *Wait) guarded() bool {
	for i := range w.looking {
		if w.looking[i].Guard > 0 {
			return true
		}
	}
	return false
}

func span(m core.Micros) time.Duration { return time.Duration(m) * time.Microsecond }

func micros(d time.Duration) core.Micros { return core.Micros(d / time.Microsecond) }
