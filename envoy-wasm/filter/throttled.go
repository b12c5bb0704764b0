// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// throttleQueueMax is the greatest number of calls of one worker for requests in throttle queues or
// in lines for a loan. Further requests are denied, as if their queue were full.
const throttleQueueMax = 4096

// enqueueThrottled makes the request wait for at most max_delay if only throttle rules deny it. It
// returns false if the request cannot wait; the request is then denied.
func (s *Stream) enqueueThrottled() bool {
	throttled := s.asking.plan.Throttled()
	if len(throttled) == 0 {
		return false
	}
	patience := throttled[0].Throttle.MaxDelay
	for _, t := range throttled {
		patience = min(patience, t.Throttle.MaxDelay)
	}
	return s.enqueueAlone(patience)
}

// Stream.awaitLoan makes a request wait because it lacks units that other regions might lend.
// If it cannot wait, it is denied.
//
//go:noinline
func (s *Stream) awaitLoan() {
	s.asking.lacks = true
	if s.state != waiting || !s.enqueueAlone(wire.LoanWait) {
		s.degrade(CounterFull)
	}
}

// enqueueAlone makes a request wait. It makes a second call, only for this request. The bridge
// answers that call as soon as the request is admitted or its wait is over. Both calls together may
// take as long as patience plus [Filter.silentFor]. The method returns false if the request cannot
// wait.
//
// If the client disconnects while the request waits, the call continues, because Envoy cannot
// cancel it. The bridge is not told that the client has left. So the request keeps its place in the
// queue, and is charged at its turn.
func (s *Stream) enqueueAlone(patience counter.Micros) bool {
	f := s.f
	if f.calls.seconds >= throttleQueueMax {
		return false
	}
	// the first call has used up a part of the time
	s.deadline = f.host.Now() + f.silentFor() + patience - (f.elapsedTime() - f.calls.answeredSent)
	if !s.askToWait(f.silentFor() + patience) {
		return false
	}
	s.state = throttleQueued
	f.calls.throttleQueue = append(f.calls.throttleQueue, s)
	return true
}

// askToWait makes the request's own call, and reports whether it could. The argument named most
// bounds the wait in case the clock went back. The wait ends at the request's deadline. Envoy ends
// the call later than that, when nothing waits for its answer any more.
//
//go:noinline
func (s *Stream) askToWait(most counter.Micros) bool {
	f, a := s.f, s.asking
	now := f.host.Now()
	left := min(s.deadline-now, most)
	if left <= 0 {
		return false
	}
	body := wire.AppendCall(nil, a.policy.version)
	body = wire.AppendAsk(body, wire.KindWait, &a.attrs.Ask, nil)
	if f.dispatch(f.checkCall(body, millis(left+lateMax)), s.takeSecond) != nil {
		return false
	}
	f.calls.seconds++
	s.deadline, a.patience, s.asked = now+left, left, f.elapsedTime()
	return true
}

// takeSecond processes the answer to the second call. A timeout of Envoy means that the deadline
// has passed, although no tick has noticed it.
func (s *Stream) takeSecond(r Reply) {
	s.f.calls.seconds--
	s.f.beginResuming()
	defer s.rescueDecision()
	if s.state == throttleQueued && r.Status == 504 {
		s.expire()
	}
	if s.state != throttleQueued {
		return // the request has ended, or its time is over
	}
	reply, err := replyOf(r)
	ok, answer := false, &s.f.calls.answer
	if err == nil {
		ok, err = reply.Next(answer)
	}
	if ok && err == nil {
		s.take(answer)
		return
	}
	s.degrade(whyOf(r))
}

// expireThrottled decides the throttled requests whose wait is over, and drops those that are
// finished.
func (f *Filter) expireThrottled(now counter.Micros) {
	list := f.calls.throttleQueue
	kept := list[:0]
	for _, s := range list {
		if s.state == throttleQueued && now >= s.deadline {
			s.expire()
		}
		if s.state == throttleQueued {
			kept = append(kept, s)
		}
	}
	clear(list[len(kept):])
	f.calls.throttleQueue = kept
}
