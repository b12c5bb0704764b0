// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"

	"github.com/penstock/penstock/core"
)

// A panic in a callback would end the whole of the filter in its worker, with every request that waits there. So each
// callback recovers: a request is decided by the policy's on_error, a response goes on as it is, and what a call was to
// answer is decided rider by rider.

var errPanic = errors.New("a panic")

// guard ends a callback that has panicked. It is deferred.
func (f *Filter) guard() {
	if reason := recover(); reason != nil {
		f.panicked(reason)
	}
}

// Guard ends a callback of the adapter's about a response that has panicked: the response goes on as it is. It is deferred.
func (s *Stream) Guard() {
	if reason := recover(); reason != nil {
		s.f.panicked(reason)
	}
}

// Panicked decides a request in whose callback the adapter has panicked.
func (s *Stream) Panicked(reason any) Action {
	s.f.panicked(reason)
	return s.Failed()
}

// guard ends a callback that was to decide a request, and decides it.
func (s *Stream) guard(action *Action) {
	if reason := recover(); reason != nil {
		*action = s.Panicked(reason)
	}
}

// rescue ends what was to decide a request that waits, and decides it.
func (s *Stream) rescue() {
	if reason := recover(); reason != nil {
		if s.Panicked(reason) == Continue {
			defer s.f.guard()
			s.f.letGo(outgoing{stream: s})
		}
	}
}

// panicked counts a panic and tells of it, once a second at most.
func (f *Filter) panicked(reason any) {
	defer func() { _ = recover() }() // of the host that is told
	f.host.Count(CounterPanic)
	text := "of an unknown kind"
	switch reason := reason.(type) {
	case error:
		text = reason.Error()
	case string:
		text = reason
	}
	if now := f.host.Now(); now >= f.quiet {
		f.quiet = now + core.Second
		f.host.Warn("penstock: a panic, and on_error decides: " + text)
	}
}

// Failed decides a request that cannot be decided: the headers cannot be read, or the filter has panicked. What the
// policy says as a whole holds then: which rules the request is under is not known.
func (s *Stream) Failed() (action Action) {
	deny := s.f.config.Deny
	if s.f.policy != nil {
		deny = s.f.policy.ruleset.OnError() == core.OnErrorDeny
	}
	action = Continue
	if deny {
		action = Pause
	}
	defer s.f.guard()
	s.drop() // who knows what is left of it
	return s.unguarded(deny)
}

// unguarded decides a request for which there is no plan.
func (s *Stream) unguarded(deny bool) Action {
	s.state = decided
	s.f.host.Count(CounterDegraded)
	if !deny {
		return Continue
	}
	var none core.Plan
	d := core.Decision{Outcome: core.OutcomeDegradedDenied, Status: 503}
	s.answer(Response{Status: 503, GRPCStatus: 14, Headers: [][2]string{{"content-type", d.ContentType()}},
		Body: none.AppendProblem(nil, &d)})
	return Pause
}

// oversized refuses a request that is too large to be asked about. on_error would let it go on, and whoever writes a long
// header would be without limits.
func (s *Stream) oversized() Action {
	s.state = decided
	s.release()
	s.f.host.Count(CounterOversized)
	s.f.host.Count(CounterDenied)
	s.answer(Response{Status: 431, GRPCStatus: 8, Headers: [][2]string{{"content-type", "application/problem+json"}},
		Body: []byte(`{"type":"about:blank","title":"Request Header Fields Too Large","status":431}`)})
	return Pause
}

// badTarget refuses a request whose path or host may be another one to the upstream. on_error would let it go on.
func (s *Stream) badTarget() Action {
	s.state = decided
	s.release()
	s.f.host.Count(CounterInvalidTarget)
	s.answer(Response{Status: 400, GRPCStatus: 3, Headers: [][2]string{{"content-type", "application/problem+json"}},
		Body: []byte(core.BadTarget)})
	return Pause
}

// answer answers the request.
//
//go:noinline
func (s *Stream) answer(r Response) {
	s.answered = true
	s.f.letGo(outgoing{s, &r})
}

// dispatch makes a call. That the host panics is an error like any other.
func (f *Filter) dispatch(c Call, answered func(Reply)) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			f.panicked(reason)
			err = errPanic
		}
	}()
	return f.host.Call(c, answered)
}

// wake makes the host call Flush soon, and reports whether it will.
func (f *Filter) wake() (ok bool) {
	defer f.guard()
	return f.host.Wake() == nil
}
