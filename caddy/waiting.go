// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"net/http"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/throttle"
)

// lines are the requests that wait for a throttle rule. They are the process's and no configuration's, so that a reload
// lets nobody push ahead.
var lines = throttle.New(throttle.Options{})

// pollMin is the least time between two questions of a waiting request: the clocks of store and node are never quite
// alike, and a unit that another node was quicker to take makes the wait begin again.
const pollMin = time.Millisecond

// statusClientGone is what Caddy writes into its log for a request whose client did not wait for the answer.
const statusClientGone = 499

// The ends of a wait, as the metric names them.
const (
	waitAdmitted = "admitted"
	waitRefused  = "refused" // by another limit meanwhile, or the store did not answer
	waitLate     = "late"    // max_delay is over, or would be
	waitFull     = "full"    // max_waiting
	waitGone     = "gone"    // the client has left
)

// wait is a request under throttle rules.
type wait struct {
	h         *Handler
	s         *scratch
	throttled []core.Throttled
	asked     time.Time // when the store answered last
	until     time.Time // when the shortest max_delay is over
	due       time.Time // before that it is not worth asking again
}

// decideThrottled decides a request that may have to wait. It reports whether its client has left meanwhile: then there
// is nobody to answer and nothing was charged.
//
// While nobody waits, a request is decided as any other is, and waits if it was refused. While somebody does, it is
// looked at first, so that one that another limit refuses is told at once, and then goes to the end of the line. It asks
// for its units when it is the first there, so none are taken ahead of those who came before.
func (h *Handler) decideThrottled(r *http.Request, s *scratch, throttled []core.Throttled) (d core.Decision, gone bool) {
	w := wait{h: h, s: s, throttled: throttled}
	var answered bool
	if w.busy() {
		d, answered = h.ask(s, s.looks())
	} else if d, answered = h.ask(s, s.plan.Checks()); !d.Refused() {
		return d, false
	}
	switch {
	case !answered:
		return d, false
	case d.Refused() && d.Delay == 0:
		if s.looked && s.guarded() {
			d, _ = h.ask(s, s.plan.Checks()) // a refusal that counts as a violation is recorded by a take only
		}
		return d, false
	}
	w.asked = time.Now()
	w.due = w.asked.Add(micros(d.Delay))
	w.until = w.asked.Add(w.patience())
	ticket := lines.Join(w.places())
	if ticket == nil {
		waitsTotal.WithLabelValues(waitFull).Inc()
		return w.refuse(), false
	}
	d, end := w.stand(r.Context(), ticket)
	ticket.Leave()
	waitsTotal.WithLabelValues(end).Inc()
	return d, end == waitGone
}

// stand waits until it is the ticket's turn and then until the request is admitted.
func (w *wait) stand(ctx context.Context, ticket *throttle.Ticket) (d core.Decision, end string) {
	timer := time.NewTimer(time.Until(w.until))
	defer timer.Stop()
	select {
	case <-ticket.Turn():
	case <-timer.C:
		return w.refuse(), waitLate
	case <-ctx.Done():
		return d, waitGone
	}
	for {
		if delay := time.Until(w.due); delay > 0 {
			timer.Reset(max(delay, pollMin))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return d, waitGone
			}
		}
		var answered bool
		d, answered = w.h.ask(w.s, w.s.plan.Checks())
		switch {
		case !d.Refused():
			w.s.plan.Delayed()
			return d, waitAdmitted
		case !answered, d.Delay == 0:
			return d, waitRefused
		}
		if w.due = time.Now().Add(micros(d.Delay)); w.due.After(w.until) {
			return d, waitLate
		}
	}
}

// busy reports whether somebody waits for one of the counters.
func (w *wait) busy() bool {
	checks := w.s.plan.Checks()
	for _, t := range w.throttled {
		if lines.Busy(checks[t.Check].Key) {
			return true
		}
	}
	return false
}

// patience is how long the request may wait: under several rules as long as every one of them lets it.
func (w *wait) patience() time.Duration {
	shortest := w.throttled[0].Throttle.MaxDelay
	for _, t := range w.throttled {
		shortest = min(shortest, t.Throttle.MaxDelay)
	}
	return micros(shortest)
}

func (w *wait) places() []throttle.Place {
	checks := w.s.plan.Checks()
	places := make([]throttle.Place, len(w.throttled))
	for i, t := range w.throttled {
		places[i] = throttle.Place{Key: checks[t.Check].Key, Max: t.Throttle.MaxWaiting}
	}
	return places
}

// refuse decides against a request for the line alone: it is full, or the turn did not come in time. By the time its
// client is told to come back, everybody who stands there now has left.
//
// What the store answered is brought to the present, or the client would be told instants that have passed.
func (w *wait) refuse() core.Decision {
	results, waited := w.s.plan.Results(), core.Micros(time.Since(w.asked).Microseconds())
	for i := range results {
		result := &results[i]
		result.At += waited
		result.Reset, result.Next = max(0, result.Reset-waited), max(0, result.Next-waited)
	}
	for _, t := range w.throttled {
		result := &results[t.Check]
		result.Refused, result.Wait = true, max(result.Wait, t.Throttle.MaxDelay)
	}
	return w.s.plan.Decide()
}

// looks returns the plan's checks as questions that charge nothing.
func (s *scratch) looks() []core.Check {
	s.looked = true
	s.looking = append(s.looking[:0], s.plan.Checks()...)
	for i := range s.looking {
		s.looking[i].Op = core.OpLook
	}
	return s.looking
}

// guarded reports whether a refusal may be a violation.
func (s *scratch) guarded() bool {
	for i := range s.looking {
		if s.looking[i].Guard > 0 {
			return true
		}
	}
	return false
}

func micros(m core.Micros) time.Duration { return time.Duration(m) * time.Microsecond }
