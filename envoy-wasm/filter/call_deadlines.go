// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

const (
	// silentMin is the least time without an answer after which a bridge counts as down. A burst of
	// one client can delay Envoy or the bridge by tenths of a second, which must not count as an
	// outage.
	silentMin = wire.SilentMin
	// lateMax is additional time for a call, because an Envoy whose ticks are late also reads the
	// answer late.
	lateMax = 2 * counter.Second
	// overdueMax is the greatest number of overdue calls. At this bound, a late call delays others.
	overdueMax = 8
)

// silentFor returns the time without an answer after which a bridge counts as down.
//
//go:noinline
func (f *Filter) silentFor() counter.Micros { return max(f.config.Deadline, silentMin) }

// callMillis returns the timeout of a call in milliseconds, as passed to Envoy.
//
//go:noinline
func (f *Filter) callMillis() uint32 { return millis(f.silentFor() + lateMax) }

// Filter.abandon decides the requests of a call without its answer.
func (f *Filter) abandon(fl *flight, why Counter) {
	f.calls.drop(fl)
	fl.over = true
	for i := range fl.items {
		r := &fl.items[i]
		if r.stream != nil && r.stream.state == waiting {
			r.stream.decideUnanswered(why)
		}
		f.leaveGate(r.gate)
		r.gate = nil
	}
}

// Filter.expire ends the waits whose deadline has passed, and checks whether a bridge that was
// down is back.
func (f *Filter) expire() {
	defer f.guard()
	c := &f.calls
	f.decideArrivals()
	f.checkDeadlines()
	now := f.host.Now()
	for _, s := range c.waiting {
		if s.state == waiting && s.isLate(now) {
			s.decideUnanswered(c.reasonLate())
		}
	}
	f.moveQueues()
	f.expireThrottled(now)
	f.send() // there may be items for which the host rejected a wake
	if c.failures < failuresMax || c.probing || isAhead(c.openTill, now, openFor) {
		return
	}
	c.probing = f.dispatch(f.checkCall(wire.AppendCall(nil, ""), millis(f.silentFor())), func(r Reply) {
		defer f.guard()
		c.probing = false
		f.noteReply(r)
	}) == nil
	if !c.probing {
		c.openTill = now + openFor
	}
}

// tickMost is the greatest part of the time between two ticks that counts as a wait for the bridge.
// tickMost allows for timers that are a little late.
const tickMost = tickFast * 3 / 2

// checkDeadlines ends the waits for calls that take too long.
//
// A call that passes its deadline is overdue. The next call is made although that call is still
// under way. A bridge that answers nothing for [Filter.silentFor] counts as down, and on_error
// decides all requests that wait. If a single call is unanswered for that long while the bridge
// answers others, its requests are answered 503: on_error might admit them, and a client could
// cause the delay. The time between two ticks counts as at most tickMost. An Envoy whose ticks are
// late also reads the answer late, which is not the bridge's fault.
func (f *Filter) checkDeadlines() {
	c, now := &f.calls, f.elapsedTime()
	for i := len(c.overdue) - 1; i >= 0; i-- { // the loop begins with the last call, because abandon removes calls
		if i < len(c.overdue) {
			f.checkDeadline(c.overdue[i], now)
		}
	}
	fl := c.flight
	if fl == nil {
		return
	}
	if f.checkDeadline(fl, now); fl.waited >= f.config.Deadline && c.flight == fl && len(c.overdue) < overdueMax {
		fl.late, c.flight = true, nil
		c.overdue = append(c.overdue, fl)
	}
}

// checkDeadline ends the wait for a call that has taken too long.
func (f *Filter) checkDeadline(fl *flight, now counter.Micros) {
	fl.waited += min(now-fl.looked, tickMost)
	fl.looked = now
	switch {
	case fl.waited >= f.silentFor() && f.calls.lastAnswered <= fl.sent:
		f.bridgeDown()
	case fl.waited >= f.silentFor(), now-fl.sent >= f.silentFor()+lateMax:
		f.abandon(fl, CounterFull)
	}
}

// bridgeDown decides by on_error the requests of all calls. No call is made for the time openFor.
func (f *Filter) bridgeDown() {
	c := &f.calls
	c.failures = failuresMax
	c.openTill = f.host.Now() + openFor
	for len(c.overdue) > 0 {
		f.abandon(c.overdue[0], CounterTimeout)
	}
	if c.flight != nil {
		f.abandon(c.flight, CounterTimeout)
	}
}

// isAhead reports whether an instant is in the future. An instant that is ahead by more than the
// argument named most counts as past, because the clock must have gone back.
func isAhead(instant, now, most counter.Micros) bool { return now < instant && instant-now <= most }

// Stream.expire decides a request in a throttle queue whose own call has no answer. If the
// bridge has answered another call since then, less than [Filter.silentFor] ago, the bridge is not
// down.
//
//go:noinline
func (s *Stream) expire() {
	f, why := s.f, CounterTimeout
	if at := f.calls.lastAnswered; at > s.asked && f.elapsedTime()-at < f.silentFor() {
		why = CounterFull
	}
	s.decideUnanswered(why)
}
