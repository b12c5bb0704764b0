// SPDX-License-Identifier: Apache-2.0

package filter

import "github.com/penstock/penstock/core"

// Requests that arrive at one time are decided together, at the end of Envoy's turn. What a decision costs in Envoy is less its
// instructions than what they push out of the processor's caches, and what Envoy does for a request pushes out in turn: taken one
// after the other the filter's code stays there. Where Envoy answers by itself and all units are in hand, a request then takes
// about half as much. A request that is alone would wait for the end of the turn and gain nothing: it is decided at once.

// A worker is crowded when this many requests have come within the span.
const (
	crowdMin  = 4
	crowdSpan = core.Millisecond
)

// arrivedMax is how many requests wait for the end of a turn. One more is decided at once.
const arrivedMax = 1024

// arrivals are the requests of this turn, and when the last ones came.
type arrivals struct {
	waiting []*Stream
	last    [crowdMin]core.Micros
	next    int // of last, the oldest
}

// crowds notes that a request has come, and reports whether so many have of late.
func (a *arrivals) crowds(now core.Micros) bool {
	oldest := a.last[a.next]
	a.last[a.next] = now
	a.next = (a.next + 1) % crowdMin
	return now-oldest < crowdSpan && now >= oldest // or else the clock went back
}

// arrive has a request wait for the end of the turn. It reports false if it is to be decided at once.
func (f *Filter) arrive(s *Stream) bool {
	a := &f.arrivals
	if !a.crowds(s.asking.attrs.view.At) || len(a.waiting) >= arrivedMax || f.full(s.asking) {
		return false
	}
	f.calls.keep(s.asking)
	s.state = arrived
	a.waiting = append(a.waiting, s)
	if !f.summonAgain() {
		s.state = fresh
		a.waiting = a.waiting[:len(a.waiting)-1]
		return false
	}
	f.hurry() // should the end of the turn not be told of
	return true
}

// judgeArrivals decides the requests of this turn, or makes them ready to be asked about. One that goes on may bring another: by an
// internal redirect.
func (f *Filter) judgeArrivals() {
	a := &f.arrivals
	for i := 0; i < len(a.waiting); i++ {
		a.waiting[i].judgeLate()
	}
	clear(a.waiting)
	a.waiting = a.waiting[:0]
}

// judgeLate decides a request that has arrived before, unless it is gone.
func (s *Stream) judgeLate() {
	if s.state == arrived {
		s.state = fresh
		s.advance(nil)
	}
}
