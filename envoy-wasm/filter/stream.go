// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// Action tells Envoy how to proceed with a request.
type Action uint8

// The actions.
const (
	Continue Action = iota
	Pause           // the request is paused until it is resumed or answered
)

// state is the progress of a request.
type state uint8

const (
	fresh          state = iota
	arrived              // the request waits for the end of the turn, or for a poll
	queued               // the request waits until the calls for similar requests have ended
	waiting              // the request waits for the bridge, in a shared call
	throttleQueued       // the request waits under a throttle rule or for a loan, with its own call
	decided
	gone
)

// Stream is one request and its response.
type Stream struct {
	_     slim.Incomparable
	place // in the queue for the next calls

	f         *Filter
	id        uint32
	state     state
	head      bool           // the response has no body to read: see exchange.HasNoBody
	complete  bool           // the request has ended
	again     uint8          // number of times that the question to the bridge was repeated
	answered  bool           // whether the filter made the response
	counted   bool           // whether the bridge has seen the decision
	grpcType  string         // the content type of the filter's own response, if Envoy would omit it
	responded bool           // whether the response has begun
	origin    uint64         // hash of the connection and x-request-id of the request
	before    *Stream        // the stream that ended without a response just before this one began
	asking    *askingData    // nil after the request was decided
	gate      *gate          // the gate that counts the request, until the request is in a call
	next      *Stream        // the next request in the queue of a gate
	deadline  counter.Micros // the deadline of a request in a throttle queue
	asked     counter.Micros // when its own call was made, on the clock of leases
	fields    response.Fields
	remaining int64
	due       *dueSettlement // the settlement of the response, or nil
}

// askingData holds the data that a request needs until it is decided. An askingData is reused.
type askingData struct {
	policy *policy
	plan   core.Plan
	writer response.Writer
	attrs  attributes
	unsure bool // whether a credential has no cached verdict
	lacks  bool // whether the bridge has answered that units of other regions are missing
	dated  bool // whether a record of the directory is unknown or old
	held   int  // bytes that the request holds while it waits

	sourced int // the bytes of held that are counted for the request's source

	patience counter.Micros // timeout of its own call in a throttle queue

	narrow int  // the check that would deny first: see core.Plan.Narrowest
	alike  bool // whether a denial of the request applies to similar requests

	denies, admits bool          // whether the filter may decide the request: see core.Plan.LocalDecision
	parts          []checkPart   // the local state of each check
	wants          []wantedUnits // units to ask for with the request
}

// askingMax is the greatest number of askingData values that are kept for reuse. Each takes a few
// KB, and up to 60 KiB after a request with a path of that length.
const askingMax = 64

// NewStream returns a new request.
func (f *Filter) NewStream(id uint32) *Stream {
	s := &Stream{f: f, id: id, before: f.ended}
	f.ended = nil
	return s
}

// RequestHeaders decides the request, or makes it wait for the end of the turn or for the bridge.
func (s *Stream) RequestHeaders(headers [][2]string) (action Action) {
	defer s.guard(&action)
	f := s.f
	f.out.told = 0 // this callback answers at most one request
	if f.policy == nil {
		f.host.Count(CounterNoPolicy)
		return s.decideUnguarded(f.config.Deny)
	}
	a := f.newAsking()
	s.asking, a.policy = a, f.policy
	a.attrs.take(f.host, f.policy, headers, f.config.Appended)
	s.origin = a.attrs.origin
	if before := s.before; before != nil && before.origin == s.origin && f.isRedirected() {
		return s.continueFrom(before)
	}
	s.before.abandon()
	s.before = nil
	if ask := &a.attrs.Ask; !core.ServesTarget(ask.Method, ask.Path, ask.Host) {
		return s.badTarget()
	}
	s.head = exchange.HasNoBody(a.attrs.Ask.Method)
	if f.arrive(s) {
		return Pause
	}
	return s.judge(nil)
}

// Stream.judge decides the request whose headers were read, or makes it wait for the bridge. The
// argument named from is the gate in whose queue the request waited, or nil.
func (s *Stream) judge(from *gate) Action {
	f, a := s.f, s.asking
	a.identify(f)
	switch {
	case len(a.plan.Checks()) == 0 && !f.unsure && !f.dated:
		return s.decideByResults()
	case a.attrs.size() > askBytesMax:
		return s.denyOversized()
	}
	return s.proceed(from)
}

// Stream.proceed decides a request that has its plan, or makes it wait for the bridge.
func (s *Stream) proceed(from *gate) Action {
	f, a := s.f, s.asking
	if action, done := s.decideLocally(); done {
		return action
	}
	if from == nil {
		s.holdForSource(0) // the source may change with the policy
		s.source = f.calls.sources.indexOf(a.plan.Source())
	}
	switch {
	case f.calls.failures >= failuresMax:
		return s.decideUnasked(CounterOpen)
	case from == nil && (f.queuesFull(a) || s.sourceFull()):
		return s.decideUnasked(CounterFull)
	case from != nil && !a.dated && s.isRemembered():
		return s.denyRemembered(f.elapsedTime())
	case from != nil && s.isLate(f.host.Now()):
		return s.decideUnasked(f.calls.reasonLate())
	}
	f.calls.keepBytes(a) // this comes first, because enqueuing the request may decide it
	s.holdForSource(a.held)
	waits, full := f.enqueue(s, from)
	switch {
	case waits:
		return Pause
	case full:
		return s.denyOverflow()
	case a.admits:
		a.wantUnits(f.elapsedTime())
	}
	if s.state = waiting; s.enqueueForBatch() {
		return Pause
	}
	return s.decideUnasked(CounterUnreachable)
}

// newAsking returns an askingData, which is new or reused.
func (f *Filter) newAsking() *askingData {
	last := len(f.idle) - 1
	if last < 0 {
		return new(askingData)
	}
	a := f.idle[last]
	f.idle[last], f.idle = nil, f.idle[:last]
	return a
}

// releaseAsking frees the request's askingData for reuse.
func (s *Stream) releaseAsking() {
	a := s.asking
	s.dropAsking()
	if a == nil || len(s.f.idle) >= askingMax {
		return
	}
	a.plan.Reset()
	a.attrs.Release()
	a.forgetParts()
	a.policy, a.lacks = nil, false
	s.f.idle = append(s.f.idle, a)
}

// dropAsking discards the request's askingData.
//
//go:noinline
func (s *Stream) dropAsking() {
	if g := s.gate; g != nil {
		s.gate = nil
		s.f.leaveGate(g)
	}
	if a := s.asking; a != nil {
		s.f.calls.held -= a.held
		a.held = 0
		s.holdForSource(0)
		s.asking = nil
		a.cancelWants()
	}
}

// askingData.identify makes the plan of the request with the cached verdicts on its credentials.
func (a *askingData) identify(f *Filter) {
	f.now, f.unsure, f.stale, f.dated, f.known = a.attrs.View.At, false, false, false, 0
	a.planRequest(f, a.policy.ruleset)
	if f.dated {
		f.known = 0 // so that the bridge sends the records
	}
	a.attrs.Ask.Known, a.unsure, a.dated = f.known, f.unsure, f.dated
	a.narrow, a.alike = a.plan.Narrowest()
}

// takeVerdict makes the plan again with the bridge's verdicts on the credentials and the records of
// the clients, and caches them. The argument named sent is the time at which the bridge was asked,
// on the clock of leases. takeVerdict returns false if the bridge verified credentials other than
// the request's, because the bridge has then decided for a different client.
func (a *askingData) takeVerdict(f *Filter, v *wire.Verdict, sent counter.Micros) bool {
	now := f.host.Now()
	a.attrs.View.At = now
	h := verdictReply{plan: &a.plan, ways: v.Ways, until: now + min(counter.Micros(v.TTLMicros), rememberedMax),
		records: v.Records, asked: now - (f.elapsedTime() - sent)}
	f.bridgeVerdicts = &h
	defer func() { f.bridgeVerdicts = nil }()
	a.identify(f)
	a.unsure = !h.isComplete()
	return !a.unsure
}

// Stream.take decides the request by the answer of the bridge, or makes it wait with a call of
// its own.
func (s *Stream) take(answer *wire.Answer) {
	defer s.rescueDecision()
	a := s.asking
	if answer.Status == wire.StatusLoan {
		s.awaitLoan()
		return
	}
	if unknown := answer.Status == wire.StatusUnknown; unknown || answer.Status == wire.StatusBusy {
		if unknown {
			s.f.pollSoon()
			s.f.poll.lost = s.f.poll.lost || s.again == againMax
		}
		if s.askAnother(reasonOf(answer.Status)) {
			return
		}
	}
	s.counted = true
	if answer.Status != wire.StatusOK {
		s.degrade(reasonOf(answer.Status))
		return
	}
	sent := s.f.calls.answeredSent
	if s.state == throttleQueued {
		sent = s.asked
	}
	if answer.Verdict != nil && !a.takeVerdict(s.f, answer.Verdict, sent) {
		s.degrade(CounterUnanswered)
		return
	}
	results := a.plan.Results()
	if len(results) != len(answer.Results) {
		s.degrade(CounterUnanswered)
		return
	}
	copy(results, answer.Results)
	if answer.Verdict != nil || s.state == throttleQueued {
		s.f.uses.learn(s.f.elapsedTime(), a.plan.Checks(), results)
	}
	if answer.Verdict != nil && a.alike {
		s.f.takeResults(a, nil, results, sent)
	}
	d := a.plan.Decide()
	if s.state == waiting && d.Denied() && d.Delay > 0 {
		if s.enqueueThrottled() {
			return
		}
		s.counted = false
	}
	if s.state == throttleQueued && !d.Denied() {
		s.f.host.Count(CounterDelayed)
	}
	s.expect(&d, answer.Receipt)
	s.resume(d)
}

const (
	// againMax is the number of times that the question of one request is repeated. If
	// Envoy alternates between two bridges, the first repetition may reach the same bridge
	// again.
	againMax = 2
	// pollsMax is the number of polls for which a request waits. After each poll, its question can
	// be sent againMax+1 more times.
	pollsMax = 4
	askedMax = (againMax+1)*(pollsMax+1) - 1
)

// askAnother repeats the question of a request whose policy the bridge did not have, or for which
// the bridge was too busy. The bridge charged nothing, and another bridge behind the same name
// might have the policy. If no bridge has the policy, the request waits for the next poll, because
// a client whose burst delays the polls could otherwise get requests through uncounted.
// The method returns false after askedMax repetitions, or sooner: see
// againMax.
//
//go:noinline
func (s *Stream) askAnother(why Counter) bool {
	if s.again == askedMax || s.again == againMax && (why == CounterBusy || s.state == throttleQueued) {
		return false
	}
	s.again++
	if c := &s.f.calls; s.again%(againMax+1) == 0 {
		s.state = arrived
		s.f.outdated = append(s.f.outdated, s)
	} else if s.state == throttleQueued {
		if !s.askToWait(s.asking.patience) {
			return false
		}
	} else if len(c.waiting) >= waitingMax || !s.enqueueForBatch() {
		return false
	}
	s.f.host.Count(why)
	return true
}

// Stream.degrade decides the request without the bridge.
//
//go:noinline
func (s *Stream) degrade(why Counter) {
	if s.decideUnasked(why) == Continue {
		s.f.letGo(outgoing{stream: s})
	}
}

// decideByResults decides the request from the results in its plan.
//
//go:noinline
func (s *Stream) decideByResults() Action { return s.decide(s.asking.plan.Decide()) }

// Stream.resume ends the wait of the request.
func (s *Stream) resume(d core.Decision) {
	if s.decide(d) == Continue {
		s.f.letGo(outgoing{stream: s})
	}
}

// Stream.decide applies the decision, and answers the request if it is denied.
func (s *Stream) decide(d core.Decision) Action {
	s.state = decided
	s.fields, s.remaining = s.asking.writer.Headers(&s.asking.plan, &d), d.Remaining
	action, count := Continue, CounterAllowed
	switch {
	case d.Denied():
		action, count = Pause, CounterDenied
	case d.Degraded:
		count = CounterDegraded
	}
	if !s.counted {
		s.f.gatherDecision(s.asking, &d)
	}
	s.f.host.Count(count)
	if d.Outcome == core.OutcomeOversized {
		s.f.host.Count(CounterOversized)
	}
	if action == Pause {
		s.deny(&d)
	}
	s.releaseAsking()
	return action
}

// Done ends the stream. If the request is in a queue or a call, it is skipped there.
func (s *Stream) Done() {
	defer s.f.guard()
	switch s.state {
	case arrived, queued, waiting, throttleQueued:
		s.releaseAsking()
	case decided:
		if s.responded {
			s.abandon()
		} else if !s.answered {
			s.f.ended.abandon()
			s.f.ended = s
		}
	}
	s.state, s.before = gone, nil
}
