// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/slim"
)

// A gate bounds the requests for one counter that calls to the bridge contain at a time. The check
// that would be the first to deny a request determines the counter. Calls contain at most one
// request more than the counter has room for. The other requests wait in a queue of the counter. A
// denial applies to all queued requests of the same cost. After an admission, the next requests
// become parts of calls. So a client that sends ten thousand requests at once causes only a few
// questions to the bridge.

const (
	// waveMax is the greatest number of requests for one counter in calls at a time. waveMax is a
	// quarter of the items of a call, so that other requests have room in the call too.
	waveMax = 64
	// gateQueueMax is the maximum number of requests that wait for one counter; waitingMax bounds
	// all queues together. Further requests are denied with 429.
	gateQueueMax = sourceMax * 3 / 4
	// If gateSourceMax requests of one source wait, in all queues together, no further request of
	// the source may wait for a counter: it is denied with 429. So at least half of a counter's
	// queue remains for other sources.
	gateSourceMax = gateQueueMax / 2
	// A source with fewer than gateAheadMax waiting requests, in all queues, is ahead of other
	// sources in the queue of a counter. If all clients share a counter, a client with thousands of
	// requests then does not delay the few requests of another client.
	gateAheadMax = 16
)

// gate tracks a counter while calls contain questions about requests for that counter. Without such
// requests the counter has no gate.
type gate struct {
	_ slim.Incomparable

	key         string
	room        int64   // units left according to the last answer; at first the limit's capacity
	under       int     // requests in calls
	length      int     // number of requests in the queue
	first, last *Stream // the queue
	lastAhead   *Stream // the last of the requests that are ahead: see gateAheadMax
	ahead       int     // requests of the queue that are ahead
	following   *gate   // next gate with a queue
	listed      bool    // whether the gate is in the list of gates with a queue: see follow
}

// gates holds the gates of one worker.
type gates struct {
	byKey       map[string]*gate
	first, last *gate // list of the gates that have, or recently had, a queue
	queues      int   // length of that list
}

// gateOf returns the gate of the counter that a.narrow selects, and creates it if necessary.
//
//go:noinline
func (l *gates) gateOf(a *askingData) *gate {
	c := &a.plan.Checks()[a.narrow]
	g := l.byKey[string(c.Key)]
	if g == nil {
		if l.byKey == nil {
			l.byKey = make(map[string]*gate)
		}
		g = &gate{key: string(c.Key), room: c.Limit.Capacity()}
		l.byKey[g.key] = g
	}
	return g
}

// shutGate removes a gate that has no requests.
//
//go:noinline
func (l *gates) shutGate(g *gate) {
	if g.under == 0 && !g.listed {
		delete(l.byKey, g.key)
	}
}

// followGate puts a gate at the end of the list of gates with a queue.
//
//go:noinline
func (l *gates) followGate(g *gate) {
	g.listed, g.following = true, nil
	if l.first == nil {
		l.first = g
	} else {
		l.last.following = g
	}
	l.last = g
	l.queues++
}

// waveOf returns the number of requests like this one that may be in calls at a time. A request
// whose credential is not known could belong to another client, so the counter's room does not
// limit it.
//
//go:noinline
func (g *gate) waveOf(a *askingData) int {
	if !a.alike || a.unsure {
		return waveMax
	}
	return int(min(g.room/a.plan.Checks()[a.narrow].Cost+1, waveMax))
}

// Filter.enqueue puts the request into the queue of its gate if enough requests like it are in
// calls, and otherwise counts it as a request in a call. The argument named from is the gate in
// whose queue the request waited, or nil. The result named full reports that the queue is full.
func (f *Filter) enqueue(s *Stream, from *gate) (waits, full bool) {
	l, a := &f.gates, s.asking
	if a.narrow < 0 {
		return false, false
	}
	g, own := l.gateOf(a), f.calls.sources.each[s.source].queued
	switch {
	case (g.first == nil || g == from) && g.under < g.waveOf(a):
		g.under++
		s.gate = g
		return false, false
	case g.length >= gateQueueMax || own >= gateSourceMax:
		return false, true
	}
	s.state = queued
	g.insert(s, own < gateAheadMax)
	s.addToCount(1)
	if !g.listed {
		l.followGate(g)
	}
	f.quickenTicks()
	return true, false
}

// gate.insert puts a request into the queue: at its end, or behind the requests that are
// ahead.
func (g *gate) insert(s *Stream, ahead bool) {
	before, n := g.last, g.length
	if ahead {
		before, n = g.lastAhead, g.ahead
		g.lastAhead = s
		g.ahead++
	}
	at := &g.first
	if n > 0 {
		at = &before.next
	}
	s.next, *at = *at, s
	if s.next == nil {
		g.last = s
	}
	g.length++
}

// leaveGate stops counting a request at its gate.
//
//go:noinline
func (f *Filter) leaveGate(g *gate) {
	if g != nil {
		g.under--
		f.gates.shutGate(g)
	}
}

// gate.learn sets the room of the counter from an answer.
func (g *gate) learn(a *askingData, results []counter.Result) {
	if a.narrow < 0 || string(a.plan.Checks()[a.narrow].Key) != g.key {
		return
	}
	if r := &results[a.narrow]; !r.Local && !r.Overflow {
		g.room = r.Remaining
	}
}

// moveQueues lets up to outMax queued requests continue, one gate after the other.
func (f *Filter) moveQueues() {
	l, moved := &f.gates, 0
	if l.first == nil {
		return
	}
	now := f.host.Now()
	for idle := 0; idle < l.queues && moved < outMax && len(f.out.waiting) == 0; idle++ {
		g := l.first
		l.first = g.following
		l.queues--
		if g.goesOn(now) {
			f.dequeue(g)
			idle = -1
			moved++
		}
		if g.first != nil {
			l.followGate(g)
			continue
		}
		g.listed = false
		l.shutGate(g)
	}
	if moved > 0 && l.first != nil {
		f.requestFlush()
	}
}

// goesOn reports whether the queue has a first request that may continue.
func (g *gate) goesOn(now counter.Micros) bool {
	s := g.first
	return s != nil && (s.state != queued || g.under < g.waveOf(s.asking) || s.isLate(now))
}

// Filter.dequeue lets the first request of the queue continue.
//
//go:noinline
func (f *Filter) dequeue(g *gate) {
	s := g.first
	g.first, s.next = s.next, nil
	g.length--
	g.ahead = max(g.ahead-1, 0)
	s.addToCount(-1)
	if s.state == queued { // otherwise the request has ended
		s.state = fresh
		s.advance(g)
	}
}

// Stream.advance decides a request that waited, or makes it wait for the bridge. The argument named
// from is the gate in whose queue the request waited, or nil.
//
//go:noinline
func (s *Stream) advance(from *gate) {
	defer s.rescueDecision()
	var action Action
	if from == nil || s.asking.unsure || s.asking.policy.directory != nil {
		action = s.judge(from)
	} else {
		action = s.proceed(from)
	}
	if action == Continue {
		s.f.letGo(outgoing{stream: s})
	}
}

// waitedMin is the least time after which a request that only waited for other calls is denied,
// because the bridge is overloaded but not down. Three deadlines apply if they are longer.
const waitedMin = 3 * counter.Second / 2

// isLate reports whether the request must be decided now although it still waits for other requests
// or calls: its wait is over, or the bridge is down.
//
//go:noinline
func (s *Stream) isLate(now counter.Micros) bool {
	c, most := &s.f.calls, max(waitedMin, 3*s.f.config.Deadline)
	return c.failures >= failuresMax || !isAhead(s.asking.attrs.View.At+most, now, most)
}

// reasonLate returns the counter for a request that is late.
//
//go:noinline
func (c *calls) reasonLate() Counter {
	if c.failures >= failuresMax {
		return CounterTimeout
	}
	return CounterFull
}
