// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/wire"
)

// Action is what Envoy is to do with a request.
type Action uint8

// The actions.
const (
	Continue Action = iota
	Pause           // until it is resumed or answered
)

// state is how far a request has come.
type state uint8

const (
	fresh   state = iota
	waiting       // for the bridge
	decided
	gone
)

// Stream is one request and its response.
type Stream struct {
	f            *Filter
	id           uint32
	state        state
	policy       *policy
	plan         core.Plan
	attrs        attributes
	looked       []looked
	known        uint64
	deadline     core.Micros
	decision     core.Decision
	fields       core.Fields
	answeredHere bool // the response is our own
}

// NewStream begins a request.
func (f *Filter) NewStream(id uint32) *Stream { return &Stream{f: f, id: id} }

// RequestHeaders decides the request, or makes it wait for the bridge.
func (s *Stream) RequestHeaders(headers [][2]string) Action {
	f := s.f
	if s.policy = f.policy; s.policy == nil {
		return s.unguarded()
	}
	s.attrs.take(f.host, s.policy, headers, f.config.Appended)
	s.identify()
	if len(s.plan.Checks()) == 0 && !f.unsure {
		s.decide(s.plan.Decide())
	} else {
		s.deadline = s.attrs.now + f.config.Deadline
		s.state = waiting
		if f.enqueue(s) {
			return Pause
		}
		s.decide(s.plan.Degrade())
	}
	if s.decision.Refused() {
		return Pause
	}
	return Continue
}

// unguarded decides while there is no policy.
func (s *Stream) unguarded() Action {
	s.state = decided
	s.f.host.Count(CounterDegraded)
	if !s.f.config.Deny {
		return Continue
	}
	s.answeredHere = true
	s.f.host.Respond(s.id, Response{Status: 503, GRPCStatus: 14, Headers: [][2]string{{"content-type", "application/problem+json"}},
		Body: []byte(`{"type":"about:blank","title":"Service unavailable","status":503}`)})
	return Pause
}

// identify makes the plan of the request, with what is remembered of its credentials.
func (s *Stream) identify() {
	f := s.f
	f.now, f.looked, f.unsure, f.known = s.attrs.now, f.looked[:0], false, 0
	s.plan.Reset()
	s.plan.Add(s.policy.ruleset, &s.attrs)
	s.looked, s.known = append(s.looked[:0], f.looked...), f.known
}

// answered decides by what the bridge said.
func (s *Stream) answered(a *wire.Answer) {
	switch a.Status {
	case wire.StatusOK:
	case wire.StatusUnavailable, wire.StatusBusy:
		s.degrade(CounterUnavailable)
		return
	case wire.StatusUnknown:
		s.degrade(CounterUnknown)
		return
	default:
		s.degrade(CounterUnanswered)
		return
	}
	if a.Verdict != nil {
		s.f.learn(s.looked, a.Verdict)
		s.attrs.now = s.f.host.Now()
		s.identify()
	}
	results := s.plan.Results()
	if len(results) != len(a.Results) {
		s.degrade(CounterUnknown)
		return
	}
	copy(results, a.Results)
	s.resume(s.plan.Decide())
}

// degrade decides without the bridge.
func (s *Stream) degrade(why Counter) {
	s.f.host.Count(why)
	s.resume(s.plan.Degrade())
}

// resume ends the wait.
func (s *Stream) resume(d core.Decision) {
	s.decide(d)
	if !d.Refused() {
		s.f.host.Resume(s.id)
	}
}

// decide takes the decision, and answers the request if it is refused.
func (s *Stream) decide(d core.Decision) {
	s.state, s.decision = decided, d
	s.fields = s.plan.Headers(&d)
	switch {
	case d.Refused():
		s.f.host.Count(CounterDenied)
		s.refuse()
	case d.Outcome == core.OutcomeDegradedAllowed:
		s.f.host.Count(CounterDegraded)
	default:
		s.f.host.Count(CounterAllowed)
	}
}

// refuse answers the request. Its header fields are all here: the filter's own answers pass ResponseHeaders too.
func (s *Stream) refuse() {
	d := &s.decision
	r := Response{Status: uint32(d.Status), GRPCStatus: -1, Body: s.plan.AppendProblem(nil, d)}
	r.Headers = append(s.told(), [2]string{"content-type", d.ContentType()})
	if d.Response != nil {
		for _, f := range d.Response.Headers {
			r.Headers = append(r.Headers, [2]string{f.Name, f.Value})
		}
	}
	if s.attrs.grpc {
		code, _ := core.GRPCStatus(d)
		r.GRPCStatus = int32(code)
	}
	s.answeredHere = true
	s.f.host.Respond(s.id, r)
}

// told are the header fields that tell of the limit.
func (s *Stream) told() (fields [][2]string) {
	for _, f := range [...][2]string{{"x-ratelimit-limit", s.fields.Limit}, {"x-ratelimit-remaining", s.fields.Remaining},
		{"x-ratelimit-reset", s.fields.Reset}, {"ratelimit", s.fields.RateLimit}, {"ratelimit-policy", s.fields.Policy},
		{"retry-after", s.fields.RetryAfter}, {"x-ratelimit-cost", s.fields.Cost}, {"www-authenticate", s.fields.Authenticate}} {
		if f[1] != "" {
			fields = append(fields, f)
		}
	}
	return fields
}

// ResponseHeaders returns the fields to set in the response.
func (s *Stream) ResponseHeaders(_ [][2]string) [][2]string {
	if s.answeredHere || s.state != decided {
		return nil
	}
	return s.told()
}

// Done ends the stream. A rider that is gone is skipped.
func (s *Stream) Done() { s.state = gone }

// Tells reports whether ResponseHeaders has something to say, so that a response need not be read otherwise.
func (s *Stream) Tells() bool { return !s.answeredHere && s.state == decided }

// Failed decides a request that cannot be decided: the headers cannot be read, or the filter has panicked.
func (s *Stream) Failed() Action {
	s.state = decided
	return s.unguarded()
}
