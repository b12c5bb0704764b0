// SPDX-License-Identifier: Apache-2.0

package filter

import "github.com/penstock/penstock/core/counter"

// Requests that arrive together are decided together, at the end of Envoy's turn. The cost of a
// decision is mostly cache misses: the filter's code and Envoy's own work evict each other from the
// processor's caches. Decisions in a row keep the filter's code cached. If Envoy responds without
// an upstream and all units are leased, a request takes about half the time this way. A request
// that arrives alone would gain nothing from the wait, so it is decided at once.

// A burst is burstMin requests within burstSpan.
const (
	burstMin  = 4
	burstSpan = counter.Millisecond
)

// arrivedMax is the maximum number of requests that wait for the end of a turn. Further requests
// are decided at once.
const arrivedMax = 1024

// turnArrivals holds the requests of this turn and the times of the last arrivals.
type turnArrivals struct {
	waiting []*Stream
	last    [burstMin]counter.Micros
	next    int // index of the oldest entry of last
}

// isBurst records an arrival, and reports whether burstMin requests arrived within burstSpan.
func (a *turnArrivals) isBurst(now counter.Micros) bool {
	oldest := a.last[a.next]
	a.last[a.next] = now
	a.next = (a.next + 1) % burstMin
	return now-oldest < burstSpan && now >= oldest // otherwise the clock went back
}

// Filter.arrive makes the request wait for the end of the turn. It returns false if the request
// must be decided at once.
func (f *Filter) arrive(s *Stream) bool {
	a := &f.arrivals
	if !a.isBurst(s.asking.attrs.View.At) || len(a.waiting) >= arrivedMax || f.queuesFull(s.asking) {
		return false
	}
	f.calls.keepBytes(s.asking)
	s.state = arrived
	a.waiting = append(a.waiting, s)
	if !f.requestFlush() {
		s.state = fresh
		a.waiting = a.waiting[:len(a.waiting)-1]
		return false
	}
	f.quickenTicks() // in case the host does not report the end of the turn
	return true
}

// decideArrivals decides the requests of this turn, or prepares their questions. A request that
// continues may add another request through an internal redirect.
func (f *Filter) decideArrivals() {
	a := &f.arrivals
	for i := 0; i < len(a.waiting); i++ {
		a.waiting[i].decideArrived()
	}
	clear(a.waiting)
	a.waiting = a.waiting[:0]
}

// decideArrived decides a request that waited for the end of the turn or for a poll, unless it has
// ended. If the policy was replaced meanwhile, the new policy decides, provided that it reads the
// same inputs as the old policy. If not, the old policy decides, because no inputs can be read now.
//
//go:noinline
func (s *Stream) decideArrived() {
	if s.state == arrived {
		s.state = fresh
		if a, p := s.asking, s.f.policy; a.policy.inputs == p.inputs {
			a.policy, a.attrs.View.Inputs = p, &p.reads.Inputs
		}
		s.advance(nil)
	}
}
