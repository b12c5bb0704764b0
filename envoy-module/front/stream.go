// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/throttle"
	"github.com/penstock/penstock/internal/envoy/exchange"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/sources"
)

// Verdict tells Envoy how to proceed with a request.
type Verdict uint8

// The verdicts.
const (
	Continue Verdict = iota // with the fields of [Stream.Fields] in the response
	Respond                 // with [Stream.Response] in place of the upstream
	Wait                    // until the waker is called
)

// Host provides values that Envoy has for the request whose hook is running.
type Host interface {
	// Attribute returns an attribute by its name.
	Attribute(name string) (value string, ok bool)
}

// Waker wakes one request.
type Waker interface {
	// Waits is called within the hook, before the request can be woken.
	Waits()
	// Wake is called once, by any goroutine, when the request is decided. Envoy then calls
	// [Stream.Woken], unless the request has ended.
	Wake()
	// Announces reports whether the adapter calls [Front.Announce] after the hook, once for the
	// requests of one turn of the worker. Otherwise Decide itself wakes a goroutine.
	Announces() bool
	// Unwaits is called after Waits, within the same hook, if the request does not wait after all.
	// Wake is then not called.
	Unwaits()
}

// Stream is one request. Envoy's worker calls its methods, one at a time.
type Stream struct {
	// Headers are the headers of the request, for [Stream.Decide]. Their texts need to be valid
	// only during the hook.
	Headers [][2]string
	// Tracer creates the span of the check. Tracer is nil if Envoy does not trace the request.
	Tracer Tracer

	front     *Front
	version   *live.Version
	candidate *live.Version // the version to try out, or nil
	request   exchange.Request
	plan      core.Plan
	writer    response.Writer
	wait      throttle.Wait
	waker     Waker
	ctx       context.Context    // for a wait under a throttle rule or for a loan
	cancel    context.CancelFunc // ends such a wait; nil if there is none
	holds     atomic.Int32       // number of uses: by the hooks, the goroutine and the watch
	state     atomic.Uint32      // while the request waits: see stateWaiting
	unknown   bool               // its client was not known when the request began to wait
	spared    bool               // an overload does not deny the request, because its rules only log
	late      bool               // the hooks know that the request was given up
	begun     time.Time          // when Decide was called

	// The place in the list of requests that wait. The lock of the asker guards these fields.
	next, before  *Stream
	listed, taken bool
	takenAt       time.Time
	from          uint16 // the number of the source, modulo sourceCounts

	verdict   Verdict
	counted   Count
	fields    response.Fields
	remaining int64
	response  Response
	denial    response.Response // keeps the memory of response
	settling  *Settling         // nil unless the charge depends on the response
	tried     *trialResponse    // the trial that waits for the response; nil for none

	failure    error       // the error of the last call of the store, or nil
	attributes [][2]string // of the span

	provoked string // in tests of panics: the place at which to panic
}

// headersKept is the largest number of headers for which room is kept for the next request.
const headersKept = 256

// streams is not a field of a front. The runtime refers to a pool until two garbage collections
// after its last use, and would thereby keep the front and its store in memory.
var streams = sync.Pool{New: func() any { return &Stream{ctx: context.Background()} }}

// NewStream returns a stream for one request. Release ends it.
func (f *Front) NewStream() *Stream {
	s := streams.Get().(*Stream)
	s.front = f
	s.holds.Store(1)
	s.writer.Shares = true
	return s
}

// Release ends the hooks' use of the stream.
func (s *Stream) Release() { s.drop() }

// Stream.drop ends one use of the stream. The end of the last use recycles the stream.
func (s *Stream) drop() {
	if s.holds.Add(-1) > 0 {
		return
	}
	if s.cancel != nil {
		s.cancel()
	}
	if t := s.settling; t != nil { // the client left while the request waited
		s.settling = nil
		t.End()
	}
	s.plan.Reset()
	s.request.Release()
	clear(s.Headers)
	s.Headers = s.Headers[:0]
	if cap(s.Headers) > headersKept {
		s.Headers = nil
	}
	s.candidate, s.tried, s.counted = nil, nil, CountNone
	s.forgetSpan()
	s.version, s.waker, s.ctx, s.cancel, s.provoked = nil, nil, context.Background(), nil, ""
	s.state.Store(stateWaiting)
	s.unknown, s.spared, s.late = false, false, false
	clear(s.denial.Headers)
	s.verdict, s.fields, s.remaining, s.response = Continue, response.Fields{}, 0, Response{}
	s.front = nil
	streams.Put(s)
}

// Decide decides the request, or makes it wait. The argument source is the value of Envoy's
// attribute source.address.
func (s *Stream) Decide(source string, host Host, waker Waker) (v Verdict) {
	defer s.rescue(&v)
	f := s.front
	provoke(s, "hook")
	s.version = f.policy.Current()
	s.candidate = f.candidate.current()
	reads := f.readsWith(s.version, s.candidate)
	q := &s.request
	s.begun = time.Now()
	q.Take(reads, s.Headers, micros(s.begun))
	q.Ask.SetAddresses(reads.Headers, source, f.settings.appended())
	if !core.ServesTarget(q.Ask.Method, q.Ask.Path, q.Ask.Host) {
		s.beginSpan(false)
		f.process.invalidTargets.Inc()
		s.counted = CountInvalidTarget
		return s.respond(response.BadTarget(), "invalid target")
	}
	status := s.asksStatus()
	s.beginSpan(!status)
	for _, name := range reads.Attrs {
		text, ok := host.Attribute(name)
		q.Ask.Attrs = append(q.Ask.Attrs, wire.Value{Text: text, Given: ok && text != ""})
	}
	q.Own()
	s.plan.Reset()
	if status {
		return s.tellStatus(waker)
	}
	if d := f.store.directory; d != nil {
		s.plan.UseDirectory(d)
	}
	s.addTo(&s.plan)
	switch {
	case len(s.plan.Unresolved()) > 0:
		// Learn reads all unknown clients together. If the goroutines that ask the store read them
		// instead, each goroutine would wait for one client after the other.
		f.store.directory.Learn(s.plan.Source(), s.plan.Unresolved())
		return s.ask(waker)
	case len(s.plan.Checks()) == 0:
		return s.applyDecision(s.plan.Decide())
	case len(s.plan.Throttled()) == 0 && f.store.TakeNow(s.plan.Checks(), s.plan.Results()) &&
		!f.store.enforcer.Lacks(&s.plan, s.plan.Checks()):
		return s.applyDecision(s.plan.Decide())
	}
	return s.ask(waker)
}

// Stream.ask makes the request wait for the store, or decides it if too many requests wait.
func (s *Stream) ask(waker Waker) Verdict {
	s.waker = waker
	if s.mayWaitLong() {
		s.ctx, s.cancel = context.WithCancel(context.Background())
	}
	s.unknown, s.from = len(s.plan.Unresolved()) > 0, uint16(sources.Number(s.plan.Source())%sourceCounts)
	s.spared = !s.plan.DeniesOverload()
	s.holds.Add(1) // for the goroutine
	s.front.enter()
	waker.Waits()
	if s.front.store.asker.enqueue(s, waker.Announces()) {
		return Wait
	}
	waker.Unwaits()
	s.holds.Add(-1)
	s.front.leave()
	s.front.store.enforcer.Failed(errFull)
	return s.decideOverloaded(errFull)
}

// mayWaitLong reports whether the request may wait for more than an answer of the store, that is
// for a throttle rule or for a loan. Such a request stops waiting when its client leaves.
func (s *Stream) mayWaitLong() bool {
	return len(s.plan.Throttled()) > 0 || s.front.store.enforcer.MayAwait(&s.plan)
}

// decideOverloaded decides a request that cannot wait for the store.
func (s *Stream) decideOverloaded(err error) (v Verdict) {
	defer s.rescue(&v)
	if len(s.plan.Unresolved()) > 0 {
		s.plan.DenyUnread() // because the client may be blocked
	}
	return s.conclude(err)
}

// Woken returns the verdict on a request that waited. If the request was given up, it is denied as
// in an overload, or on_error decides if the store is known to be away. In both cases, a client
// that is not known is denied, because it may be blocked.
func (s *Stream) Woken() Verdict {
	state := s.state.Load()
	if s.late = state == stateLate || state == stateAway; !s.late {
		return s.verdict
	}
	if s.unknown || s.front.Denies() || state == stateLate && !s.spared {
		return Respond
	}
	return Continue
}

// Gone notes that the client has left while the request waited. A request that waits for a throttle
// rule or for a loan stops waiting, and is charged nothing.
func (s *Stream) Gone() {
	if s.cancel != nil {
		s.cancel()
	}
	s.drop()
}

// applyDecision applies a decision.
func (s *Stream) applyDecision(d core.Decision) Verdict {
	if d.Rule == "" {
		d.Rule = s.plan.BlockedBy()
	}
	s.front.store.enforcer.Count(&s.plan, &d, s.version)
	if s.Tracer != nil {
		s.describe(&d)
	}
	s.fields, s.remaining = s.writer.Headers(&s.plan, &d), d.Remaining
	s.counted = countOf(&d)
	s.tryOut(d.Denied())
	if !d.Denied() {
		s.expect()
		return Continue
	}
	s.denial.Deny(&s.plan, &d, s.request.ContentType, &s.fields)
	s.denial.Headers = append(s.denial.Headers, response.Uncached)
	message := ""
	if response.GRPCType(s.request.ContentType) != "" {
		_, message = response.GRPCStatus(&d)
	}
	return s.respond(s.denial, message)
}

// Stream.respond makes the front answer the request in place of the upstream. The argument message
// is used for gRPC clients.
func (s *Stream) respond(r response.Response, message string) Verdict {
	s.response = responseTo(s.request.ContentType, r, message)
	return Respond
}

// Begun returns the time at which Decide was called.
func (s *Stream) Begun() time.Time { return s.begun }

// Fields returns the fields about limits to set in the response, and the remaining units that they
// report. The fields are valid until Release.
func (s *Stream) Fields() (fields *response.Fields, remaining int64) {
	if s.late { // the goroutine may be writing them
		return new(response.Fields), 0
	}
	return &s.fields, s.remaining
}

// Response returns the response after the verdict Respond.
func (s *Stream) Response() *Response {
	if s.late {
		r := Unguarded()
		if s.state.Load() == stateLate {
			r.Headers = append(r.Headers, [2]string{"retry-after", "1"})
		}
		return r
	}
	return &s.response
}

// Stream.rescue recovers from a panic while a request is decided, and decides the request by
// on_error of the policy. It must be deferred.
func (s *Stream) rescue(v *Verdict) {
	if reason := recover(); reason != nil {
		*v = s.fail(reason)
	}
}

// Stream.fail decides a request by on_error of the policy after a panic.
func (s *Stream) fail(reason any) Verdict {
	s.front.process.countPanic(reason)
	s.fields, s.counted = response.Fields{}, CountPanic
	s.describeUndecided("panic")
	if s.front.Denies() {
		return s.respond(response.Unguarded(), "unavailable")
	}
	return Continue
}
