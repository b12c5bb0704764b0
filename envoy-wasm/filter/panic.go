// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
)

// A panic in a callback would end the whole filter in its worker, with all requests that wait
// there. So each callback recovers. After a panic, on_error of the policy decides a request, a
// response continues unchanged, and the items of a call are decided one by one.

var errPanic = errors.New("a panic")

// Filter.guard recovers from a panic in a callback. It must be deferred.
func (f *Filter) guard() {
	if reason := recover(); reason != nil {
		f.countPanic(reason)
	}
}

// Guard recovers from a panic of the adapter in a callback about a response. The response continues
// unchanged. Guard must be deferred.
func (s *Stream) Guard() {
	if reason := recover(); reason != nil {
		s.f.countPanic(reason)
	}
}

// Panicked decides a request after a panic of the adapter.
func (s *Stream) Panicked(reason any) Action {
	s.f.countPanic(reason)
	return s.Failed()
}

// Stream.guard recovers from a panic in a callback that decides a request, and decides the request.
// It must be deferred.
func (s *Stream) guard(action *Action) {
	if reason := recover(); reason != nil {
		*action = s.Panicked(reason)
	}
}

// rescueDecision recovers from a panic while a waiting request is decided, and decides the request.
// rescueDecision must be deferred.
func (s *Stream) rescueDecision() {
	if reason := recover(); reason != nil {
		if s.Panicked(reason) == Continue {
			defer s.f.guard()
			s.f.letGo(outgoing{stream: s})
		}
	}
}

// countPanic counts a panic, and logs at most one per second.
func (f *Filter) countPanic(reason any) {
	defer func() { _ = recover() }() // the host might panic again
	f.host.Count(CounterPanic)
	text := "of an unknown kind"
	switch reason := reason.(type) {
	case error:
		text = reason.Error()
	case string:
		text = reason
	}
	if now := f.host.Now(); now >= f.quiet {
		f.quiet = now + counter.Second
		f.host.Warn("penstock: a panic, and on_error decides: " + text)
	}
}

// Failed decides a request that cannot be decided by rules: its headers cannot be read, or the
// filter panicked. The on_error of the whole policy applies, because the rules of the request are
// unknown.
func (s *Stream) Failed() (action Action) {
	deny := s.f.config.Deny
	if s.f.policy != nil {
		deny = s.f.policy.ruleset.OnError() == counter.OnErrorDeny
	}
	action = Continue
	if deny {
		action = Pause
	}
	defer s.f.guard()
	s.dropAsking() // the state of the request is unknown after a panic
	return s.decideUnguarded(deny)
}

// decideUnguarded decides a request for which there is no plan.
func (s *Stream) decideUnguarded(deny bool) Action {
	s.state = decided
	s.f.host.Count(CounterDegraded)
	if !deny {
		return Continue
	}
	d := core.Decision{Outcome: core.OutcomeDegradedDenied, Status: 503}
	s.problem(503, 14, response.AppendProblem(nil, new(core.Plan), &d))
	return Pause
}

// denyOversized denies a request that is too large for a question. If on_error applied here, a
// client could escape its limits by sending a long header.
func (s *Stream) denyOversized() Action {
	s.state = decided
	s.releaseAsking()
	s.f.host.Count(CounterOversized)
	s.f.host.Count(CounterDenied)
	s.problem(431, 8, []byte(`{"type":"about:blank","title":"Request Header Fields Too Large","status":431}`))
	return Pause
}

// badTarget answers 400 to a request whose path or host the upstream might read differently.
// on_error does not apply, because it could let the request through.
func (s *Stream) badTarget() Action {
	s.state = decided
	s.releaseAsking()
	s.f.host.Count(CounterInvalidTarget)
	s.problem(400, 3, []byte(response.InvalidTarget))
	return Pause
}

// problem answers the request with a problem document.
//
//go:noinline
func (s *Stream) problem(status uint32, grpc int32, body []byte) {
	s.answerWith(Response{Status: status, GRPCStatus: grpc, Headers: [][2]string{{"content-type", corepolicy.ContentProblem}}, Body: body})
}

// answerWith answers the request.
//
//go:noinline
func (s *Stream) answerWith(r Response) {
	s.answered = true
	r.Headers = append(r.Headers, [2]string{"cache-control", "no-store"}) // like response.Uncached, whose use would make the filter larger
	s.f.letGo(outgoing{s, &r})
}

// Filter.dispatch makes a call. A panic of the host counts as an error.
func (f *Filter) dispatch(c Call, answered func(Reply)) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			f.countPanic(reason)
			err = errPanic
		}
	}()
	return f.host.Call(c, answered)
}

// Filter.wake makes the host call Flush soon, and reports whether the host will do so.
func (f *Filter) wake() (ok bool) {
	defer f.guard()
	return f.host.Wake() == nil
}
