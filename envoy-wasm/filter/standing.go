// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// standingMax is how many requests of one worker may stand in line, each with a call of its own. One more is refused, as it
// is where a line is full.
const standingMax = 4096

// stand lets a request wait that only throttle rules refuse: a second call, of its own, which the bridge answers once the
// request is admitted or has waited as long as it may: max_delay, and for both calls together the deadline. It reports false if the request cannot wait; then it is
// refused.
//
// A client that leaves meanwhile does not end the call, since Envoy cancels none. The bridge notices nothing: the request
// keeps its place, and is charged if its turn comes.
func (s *Stream) stand() bool {
	f, a := s.f, s.asking
	throttled := a.plan.Throttled()
	if len(throttled) == 0 || len(f.calls.standing) >= standingMax {
		return false
	}
	patience := throttled[0].Throttle.MaxDelay
	for _, t := range throttled {
		patience = min(patience, t.Throttle.MaxDelay)
	}
	s.deadline = f.host.Now() + f.config.Deadline + patience - (f.elapsed() - f.calls.dealt) // the bridge had a part of it already
	if !s.askToWait(f.config.Deadline + patience) {
		return false
	}
	s.state = standing
	f.calls.standing = append(f.calls.standing, s)
	return true
}

// askToWait makes a request's own call. It reports false if there is none. A clock that went back would have the request wait for as
// long, but for the most that it may.
//
//go:noinline
func (s *Stream) askToWait(most core.Micros) bool {
	f, a := s.f, s.asking
	now := f.host.Now()
	left := min(s.deadline-now, most)
	if left <= 0 {
		return false
	}
	body := wire.AppendCall(nil, a.policy.version)
	body = wire.AppendAsk(body, wire.KindWait, &a.attrs.ask, nil)
	if f.dispatch(f.checkCall(body, millis(left)), s.admitted) != nil {
		return false
	}
	s.deadline, a.patience = now+left, left
	return true
}

// admitted takes the answer to the second call.
func (s *Stream) admitted(r Reply) {
	s.f.tellOfMore()
	defer s.rescue()
	if s.state != standing {
		return // gone, or its time is over
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

// expireStanding decides those that have stood as long as they may, and lets go of those that are done.
func (f *Filter) expireStanding(now core.Micros) {
	list := f.calls.standing
	kept := list[:0]
	for _, s := range list {
		if s.state == standing && now >= s.deadline {
			s.expire()
		}
		if s.state == standing {
			kept = append(kept, s)
		}
	}
	clear(list[len(kept):])
	f.calls.standing = kept
}
