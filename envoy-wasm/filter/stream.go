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
	fresh    state = iota
	arrived        // and waits for the end of the turn
	lined          // waits for others like it that are being asked about
	waiting        // for the bridge, in a call that it shares
	standing       // under a throttle rule, with a call of its own
	decided
	gone
)

// Stream is one request and its response.
type Stream struct {
	f         *Filter
	id        uint32
	state     state
	head      bool        // the method is HEAD
	complete  bool        // the request has come to its end
	hurried   bool        // the client says how long the upstream may take
	again     uint8       // how often it was asked about once more
	answered  bool        // the response is our own
	grpcType  string      // the content type of our own response, if Envoy would leave it out
	responded bool        // the response has begun
	origin    uint64      // of the request: its connection and its x-request-id
	before    *Stream     // that ended just before this one began, if that had no response
	asking    *asking     // until it is decided
	gate      *gate       // that counts it, until it rides in a call
	next      *Stream     // in the line of a gate
	deadline  core.Micros // of one that stands in line for a throttle rule
	told      core.Telling
	remaining int64
	due       *due // what the response settles; nil for nothing
}

// asking is what a request needs until it is decided. It is used again.
type asking struct {
	policy *policy
	plan   core.Plan
	attrs  attributes
	unsure bool // a credential is not known
	held   int  // bytes of the request that are held while it waits

	patience core.Micros // of the call that it stands in line with

	narrow int  // the check that is the first to refuse, see core.Plan.Narrowest
	alike  bool // what it refuses one it refuses others

	refuses, admits bool     // the request may be decided here, see core.Plan.Aside
	parts           []part   // of its checks
	wants           []wanted // what is to be asked for with it
}

// askingMax is how many are kept for later requests: some KB each, and up to 60 KiB where the last request had so long a path.
const askingMax = 64

// NewStream begins a request.
func (f *Filter) NewStream(id uint32) *Stream {
	s := &Stream{f: f, id: id, before: f.ended}
	f.ended = nil
	return s
}

// RequestHeaders decides the request, or makes it wait: for the end of the turn, or for the bridge.
func (s *Stream) RequestHeaders(headers [][2]string) (action Action) {
	defer s.guard(&action)
	f := s.f
	f.out.told = 0 // one answer at most is given here
	if f.policy == nil {
		f.host.Count(CounterNoPolicy)
		return s.unguarded(f.config.Deny)
	}
	a := f.ask()
	s.asking, a.policy = a, f.policy
	a.attrs.take(f.host, f.policy, headers, f.config.Appended)
	if ask := &a.attrs.ask; !core.ServesTarget(ask.Method, ask.Path, ask.Host) {
		return s.badTarget()
	}
	s.origin = a.attrs.origin
	if before := s.before; before != nil && before.origin == s.origin && f.redirected() {
		return s.goOn(before)
	}
	s.before = nil
	s.head, s.hurried = a.attrs.ask.Method == "HEAD", a.attrs.hurried
	if f.arrive(s) {
		return Pause
	}
	return s.judge(nil)
}

// judge decides the request that was taken in, or makes it wait for the bridge. from is the gate whose line it comes from, if it
// does.
func (s *Stream) judge(from *gate) Action {
	f, a := s.f, s.asking
	a.identify(f)
	switch {
	case len(a.plan.Checks()) == 0 && !f.unsure:
		return s.concluded()
	case a.attrs.size() > askBytesMax:
		return s.oversized()
	}
	return s.proceed(from)
}

// proceed decides a request that has its plan, if that can be, and otherwise makes it wait.
func (s *Stream) proceed(from *gate) Action {
	f, a := s.f, s.asking
	if action, done := s.aside(); done {
		return action
	}
	switch {
	case f.calls.failures >= failuresMax:
		return s.unasked(CounterOpen)
	case from == nil && f.full(a):
		return s.unasked(CounterFull)
	case from != nil && s.remembers():
		return s.remembered(f.elapsed())
	case from != nil && s.late(f.host.Now()):
		return s.unasked(f.calls.whyLate())
	}
	f.calls.keep(a) // before it is queued, which may decide it
	waits, full := f.line(s, from)
	switch {
	case waits:
		return Pause
	case full:
		return s.crowdedOut()
	case a.admits:
		a.want(f.elapsed())
	}
	if s.state = waiting; s.queue() {
		return Pause
	}
	return s.unasked(CounterUnreachable)
}

// ask returns what a request needs until it is decided.
func (f *Filter) ask() *asking {
	last := len(f.idle) - 1
	if last < 0 {
		return new(asking)
	}
	a := f.idle[last]
	f.idle[last], f.idle = nil, f.idle[:last]
	return a
}

// release lets go of what the request needed to be decided.
func (s *Stream) release() {
	a := s.asking
	s.drop()
	if a == nil || len(s.f.idle) >= askingMax {
		return
	}
	a.plan.Reset()
	a.attrs.release()
	a.forget()
	a.policy = nil
	s.f.idle = append(s.f.idle, a)
}

// drop forgets what the request needed to be decided.
//
//go:noinline
func (s *Stream) drop() {
	if g := s.gate; g != nil {
		s.gate = nil
		s.f.leave(g)
	}
	if a := s.asking; a != nil {
		s.f.calls.held -= a.held
		a.held = 0
		s.asking = nil
		a.unwant()
	}
}

// identify makes the plan of the request, with what is remembered of its credentials.
func (a *asking) identify(f *Filter) {
	f.now, f.unsure, f.stale, f.known = a.attrs.view.At, false, false, 0
	a.plan.Reset()
	a.plan.Add(a.policy.ruleset, &a.attrs.view)
	a.attrs.ask.Known, a.unsure = f.known, f.unsure
	a.narrow, a.alike = a.plan.Narrowest()
}

// hear makes the plan again, with what the bridge said of the credentials, and remembers that. It reports false if the
// bridge speaks of others than the request shows: then it has decided about somebody else.
func (a *asking) hear(f *Filter, v *wire.Verdict) bool {
	a.attrs.view.At = f.host.Now()
	h := hearing{plan: &a.plan, ways: v.Ways, until: a.attrs.view.At + min(core.Micros(v.TTLMicros), rememberedMax)}
	f.hears = &h
	defer func() { f.hears = nil }()
	a.identify(f)
	a.unsure = !h.heard()
	return !a.unsure
}

// take decides by what the bridge said, or lets the request stand in line.
func (s *Stream) take(answer *wire.Answer) {
	defer s.rescue()
	a := s.asking
	if unknown := answer.Status == wire.StatusUnknown; unknown || answer.Status == wire.StatusBusy {
		if unknown {
			s.f.pollSoon()
		}
		if s.askAnother(whyNot(answer.Status)) {
			return
		}
		s.f.poll.lost = s.f.poll.lost || unknown
	}
	if answer.Status != wire.StatusOK {
		s.degrade(whyNot(answer.Status))
		return
	}
	if answer.Verdict != nil && !a.hear(s.f, answer.Verdict) {
		s.degrade(CounterUnknown)
		return
	}
	results := a.plan.Results()
	if len(results) != len(answer.Results) {
		s.degrade(CounterUnknown)
		return
	}
	copy(results, answer.Results)
	if answer.Verdict != nil && a.alike {
		s.f.hear(a, nil, results, s.f.calls.dealt)
	}
	d := a.plan.Decide()
	if s.state == waiting && d.Refused() && d.Delay > 0 && s.stand() {
		return
	}
	if s.state == standing && !d.Refused() {
		s.f.host.Count(CounterDelayed)
	}
	s.expect(&d, answer.Receipt)
	s.resume(d)
}

// againMax is how often a request is asked about once more: of two bridges that take turns, a call for something else may have been
// the other's.
const againMax = 2

// askAnother asks once more about a request whose policy the bridge did not know, or for which it had no time: it has charged nothing,
// and of several behind one name the next may know it. It reports false if that is to be no more.
//
//go:noinline
func (s *Stream) askAnother(why Counter) bool {
	if s.again == againMax {
		return false
	}
	s.again++
	if c := &s.f.calls; s.state == standing {
		if !s.askToWait(s.asking.patience) {
			return false
		}
	} else if len(c.waiting) >= waitingMax || !s.queue() {
		return false
	}
	s.f.host.Count(why)
	return true
}

// degrade decides without the bridge.
//
//go:noinline
func (s *Stream) degrade(why Counter) {
	if s.unasked(why) == Continue {
		s.f.letGo(outgoing{stream: s})
	}
}

// concluded decides by the results that there are.
//
//go:noinline
func (s *Stream) concluded() Action { return s.decide(s.asking.plan.Decide()) }

// resume ends the wait.
func (s *Stream) resume(d core.Decision) {
	if s.decide(d) == Continue {
		s.f.letGo(outgoing{stream: s})
	}
}

// decide takes the decision, and answers the request if it is refused.
func (s *Stream) decide(d core.Decision) Action {
	s.state = decided
	fields := s.asking.plan.Headers(&d)
	s.told, s.remaining = fields.Telling(), d.Remaining
	action, count := Continue, CounterAllowed
	switch {
	case d.Refused():
		action, count = Pause, CounterDenied
	case d.Degraded:
		count = CounterDegraded
	}
	s.f.host.Count(count)
	if d.Outcome == core.OutcomeOversized {
		s.f.host.Count(CounterOversized)
	}
	if action == Pause {
		s.refuse(&d, fields.Authenticate)
	}
	s.release()
	return action
}

// Done ends the stream. A rider that is gone is skipped.
func (s *Stream) Done() {
	defer s.f.guard()
	switch s.state {
	case arrived, lined, waiting, standing:
		s.release()
	case decided:
		if d := s.due; d != nil {
			d.cut = true
			d.learn(nil)
		}
		s.settle() // a body that was cut short counts as far as it came, or for what the policy says of such
		if !s.answered && !s.responded {
			s.f.ended = s
		}
	}
	s.state, s.before = gone, nil
}
