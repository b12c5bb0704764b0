// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/throttle"
)

// batch holds the requests about which one goroutine asks the store together.
type batch struct {
	asker   *asker
	streams []*Stream // nil after the decision
	calls   []counter.Call
	asked   []int // for each call, the index of its stream

	// reading bounds the time for which all requests of the batch together wait for the directory.
	// It is nil until one of the requests has to wait. endReading releases it.
	reading    context.Context
	endReading context.CancelFunc
}

// readingMax is how long the requests of a batch together wait for the directory. If the time of
// each request were bounded separately, the last request of the batch, and those in the queue
// behind it, would wait for the sum of these times.
const readingMax = time.Second

// batch.run decides the requests.
func (b *batch) run() {
	defer func() {
		if reason := recover(); reason != nil {
			b.each(func(s *Stream) Verdict { return s.fail(reason) })
		}
		b.reset()
	}()
	for i, s := range b.streams {
		b.begin(i, s)
	}
	if len(b.calls) == 0 {
		return
	}
	b.asker.enforcer.TakeAll(context.Background(), b.calls, b)
	b.asker.unlist(b.streams...)
	for at, i := range b.asked {
		switch s := b.streams[i]; {
		case s == nil:
		case b.calls[at].Err == nil && b.asker.enforcer.Lacks(&s.plan, s.plan.Checks()):
			b.streams[i] = nil
			go s.awaitLoan(true)
		default:
			b.end(i, s.conclude(b.calls[at].Err))
		}
	}
}

// batch.reset prepares the batch for other requests.
func (b *batch) reset() {
	clear(b.streams)
	clear(b.calls)
	b.calls, b.asked = b.calls[:0], b.asked[:0]
	if b.reading != nil {
		b.endReading()
		b.reading, b.endReading = nil, nil
	}
}

// batch.begin reads the clients of a request that are not known yet, and adds the request to the
// calls. A request that needs no call is decided at once. A request that may wait for a throttle
// rule or for a loan gets a goroutine of its own instead.
func (b *batch) begin(i int, s *Stream) {
	defer func() {
		if reason := recover(); reason != nil {
			b.asker.unlist(s)
			b.end(i, s.fail(reason))
		}
	}()
	b.resolve(s)
	switch {
	case len(s.plan.Checks()) == 0:
		b.asker.unlist(s)
		b.end(i, s.conclude(nil))
	case len(s.plan.Throttled()) > 0:
		b.asker.unlist(s) // the throttle queue bounds the wait
		b.streams[i] = nil
		go s.queueUp()
	case b.asker.enforcer.Behind(s.plan.Checks()):
		b.asker.unlist(s)
		b.streams[i] = nil
		go s.awaitLoan(false)
	default:
		b.calls, b.asked = append(b.calls, counter.Call{Checks: s.plan.Checks(), Results: s.plan.Results()}), append(b.asked, i)
	}
}

// batch.end wakes a request that is decided. The request must not be in the list any more.
func (b *batch) end(i int, v Verdict) {
	s := b.streams[i]
	b.streams[i] = nil
	s.wakeRequest(v)
}

// batch.each decides all remaining requests of the batch with the given function.
func (b *batch) each(decide func(*Stream) Verdict) {
	b.asker.unlist(b.streams...)
	for i, s := range b.streams {
		if s != nil {
			b.end(i, decide(s))
		}
	}
}

// Panicked implements [enforce.Batch].
func (b *batch) Panicked(call int, reason any) {
	i := b.asked[call]
	b.asker.unlist(b.streams[i])
	b.end(i, b.streams[i].fail(reason))
}

// batch.resolve makes the directory read the clients of a request that it does not know yet, and
// then plans the request again. The request is denied if its clients are not read in time.
func (b *batch) resolve(s *Stream) {
	if len(s.plan.Unresolved()) == 0 {
		return
	}
	if b.reading == nil {
		b.reading, b.endReading = context.WithTimeout(context.Background(), readingMax)
	}
	s.resolveIn(b.reading, &s.plan)
}

// resolveIn does the work of the method resolve, for a plan that has unresolved clients.
func (s *Stream) resolveIn(ctx context.Context, p *core.Plan) {
	s.front.store.directory.Resolve(ctx, p, func() { s.addTo(p) })
}

// addTo adds the request to a plan. A client that has become known may be subject to another
// version of the policy.
func (s *Stream) addTo(p *core.Plan) { s.version = s.version.Add(p, &s.request.View) }

// conclude decides the request by the store's answer, or by err if the call failed.
func (s *Stream) conclude(err error) (v Verdict) {
	defer s.rescue(&v)
	s.Provoke("goroutine")
	if s.failure = err; err != nil {
		return s.applyDecision(s.plan.Fail(err))
	}
	return s.applyDecision(s.plan.Decide())
}

// The states of a request that waits. The request's goroutine and the method named watch both try
// to change the state with compare-and-swap, so that exactly one of them wakes the request.
const (
	stateWaiting uint32 = iota
	stateDecided        // the goroutine has decided it
	stateLate           // given up; the store has not ended the call in time, but is not known to be away
	stateAway           // given up; the store is known to be away
)

// wakeRequest wakes the request unless it was given up, and ends the goroutine's use of the
// request.
func (s *Stream) wakeRequest(v Verdict) {
	f := s.front
	s.verdict = v
	if s.state.CompareAndSwap(stateWaiting, stateDecided) {
		s.waker.Wake()
	}
	s.drop()
	f.leave()
}

// giveUp wakes the request if its goroutine has not decided it yet. The state says why the request
// is given up. In any case, giveUp ends the use of the request by the method named watch.
func (s *Stream) giveUp(state uint32) {
	if s.state.CompareAndSwap(stateWaiting, state) {
		s.waker.Wake()
	}
	s.drop()
}

// queueUp decides a request under a throttle rule. The request may wait in a throttle queue.
func (s *Stream) queueUp() {
	var v Verdict
	defer func() {
		if reason := recover(); reason != nil {
			v = s.fail(reason)
		}
		s.wakeRequest(v)
	}()
	d, end := s.wait.Decide(s.ctx, s.front.process.lines, &s.plan, s.plan.Throttled(), s)
	if end != throttle.EndNone {
		s.front.process.metrics.Waits.WithLabelValues(string(end)).Inc()
	}
	if end != throttle.EndGone {
		v = s.applyDecision(d)
	}
}

// awaitLoan decides a request that waits until other regions lend units. The argument named taken
// reports whether the store has already been asked about the request.
func (s *Stream) awaitLoan(taken bool) {
	var v Verdict
	defer func() {
		if reason := recover(); reason != nil {
			v = s.fail(reason)
		}
		s.wakeRequest(v)
	}()
	d, gone, err := s.front.store.enforcer.AwaitLoan(s.ctx, &s.plan, s.plan.Checks(), taken)
	if gone {
		return
	}
	s.failure = err
	v = s.applyDecision(d)
}

// Ask implements [throttle.Asker].
func (s *Stream) Ask(checks []counter.Check) (core.Decision, bool) {
	d, err := s.front.store.enforcer.Ask(&s.plan, checks)
	s.failure = err
	return d, err == nil
}

// Replan implements [throttle.Asker].
func (s *Stream) Replan(p *core.Plan) {
	if d := s.front.store.directory; d != nil {
		p.UseDirectory(d)
	}
	s.addTo(p)
	if len(p.Unresolved()) > 0 {
		s.resolveIn(context.Background(), p)
	}
}
