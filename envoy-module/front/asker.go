// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"sync"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/throttle"
)

// Bounds of the requests that wait for the store.
const (
	// waitingMax is the number of requests in the queue. Further ones are denied as overload.
	waitingMax = 8192
	// askersMax is the number of goroutines that ask the store. Each asks about up to batchMax
	// requests at once.
	askersMax = 16
	batchMax  = 64
)

// asker asks the store about requests that wait, in the order of their arrival.
type asker struct {
	process  *Process
	enforcer *enforce.Enforcer

	mu      sync.Mutex
	more    sync.Cond
	queue   []*Stream
	first   int // index of the first of the queue
	idle    int
	started int
	stopped bool
}

func newAsker(p *Process, e *enforce.Enforcer) *asker {
	a := &asker{process: p, enforcer: e}
	a.more.L = &a.mu
	return a
}

// add adds a request to the queue. It returns false if the queue is full.
func (a *asker) add(s *Stream) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopped || len(a.queue)-a.first >= waitingMax {
		return false
	}
	a.queue = append(a.queue, s)
	switch {
	case a.idle > 0:
		a.more.Signal()
	case a.started < askersMax:
		a.started++
		go a.work()
	}
	return true
}

// stop ends the goroutines. No request may wait any more.
func (a *asker) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.more.Broadcast()
}

// next waits for requests and moves the first of them to into.
func (a *asker) next(into []*Stream) []*Stream {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.queue) == a.first {
		if a.stopped {
			return nil
		}
		a.idle++
		a.more.Wait()
		a.idle--
	}
	n := min(batchMax, len(a.queue)-a.first)
	into = append(into, a.queue[a.first:a.first+n]...)
	clear(a.queue[a.first : a.first+n])
	if a.first += n; a.first == len(a.queue) {
		a.queue, a.first = a.queue[:0], 0
	} else if a.first >= waitingMax {
		a.queue, a.first = append(a.queue[:0], a.queue[a.first:]...), 0
	}
	return into
}

func (a *asker) work() {
	b := batch{asker: a}
	for {
		if b.streams = a.next(b.streams[:0]); len(b.streams) == 0 {
			return
		}
		b.run()
	}
}

// batch is some requests about which the store is asked together.
type batch struct {
	asker   *asker
	streams []*Stream // nil once decided
	calls   []counter.Call
	asked   []int // for each call, the index of its stream
}

// run decides the requests.
func (b *batch) run() {
	defer func() {
		if reason := recover(); reason != nil {
			b.each(func(s *Stream) Verdict { return s.fail(reason) })
		}
		clear(b.streams)
		clear(b.calls)
		b.calls, b.asked = b.calls[:0], b.asked[:0]
	}()
	for i, s := range b.streams {
		b.begin(i, s)
	}
	if len(b.calls) == 0 {
		return
	}
	b.asker.enforcer.TakeAll(b.calls, b)
	for at, i := range b.asked {
		if s := b.streams[i]; s != nil {
			b.end(i, s.conclude(b.calls[at].Err))
		}
	}
}

// begin reads the clients of a request that are not known, and adds the request to the calls. A
// request that needs no call is decided, and one under a throttle rule waits on its own.
func (b *batch) begin(i int, s *Stream) {
	defer func() {
		if reason := recover(); reason != nil {
			b.end(i, s.fail(reason))
		}
	}()
	s.resolve()
	switch {
	case len(s.plan.Checks()) == 0:
		b.end(i, s.conclude(nil))
	case len(s.plan.Throttled()) > 0:
		b.streams[i] = nil
		go s.queueUp()
	default:
		b.calls, b.asked = append(b.calls, counter.Call{Checks: s.plan.Checks(), Results: s.plan.Results()}), append(b.asked, i)
	}
}

// end wakes a request that is decided.
func (b *batch) end(i int, v Verdict) {
	s := b.streams[i]
	b.streams[i] = nil
	s.decided(v)
}

// each decides all requests that are not decided.
func (b *batch) each(decide func(*Stream) Verdict) {
	for i, s := range b.streams {
		if s != nil {
			b.end(i, decide(s))
		}
	}
}

// Panicked implements [enforce.Batch].
func (b *batch) Panicked(call int, reason any) {
	i := b.asked[call]
	b.end(i, b.streams[i].fail(reason))
}

// resolve has the directory read the clients that it does not know, and plans the request again.
func (s *Stream) resolve() {
	if len(s.plan.Unresolved()) > 0 {
		s.resolveIn(&s.plan)
	}
}

// resolveIn is resolve for a plan that has unresolved clients.
func (s *Stream) resolveIn(p *core.Plan) {
	s.front.store.directory.Resolve(context.Background(), p, func() { p.Add(s.version.Ruleset, &s.request.View) })
}

// conclude decides the request by the store's answer.
func (s *Stream) conclude(err error) (v Verdict) {
	defer s.rescue(&v)
	s.Provoke("goroutine")
	if err != nil {
		return s.complete(s.plan.Fail(err))
	}
	return s.complete(s.plan.Decide())
}

// decided wakes the request.
func (s *Stream) decided(v Verdict) {
	f := s.front
	s.verdict = v
	s.waker.Wake()
	s.drop()
	f.leave()
}

// queueUp decides a request under a throttle rule, which may wait for its turn.
func (s *Stream) queueUp() {
	var v Verdict
	defer func() {
		if reason := recover(); reason != nil {
			v = s.fail(reason)
		}
		s.decided(v)
	}()
	d, end := s.wait.Decide(s.ctx, s.front.process.lines, &s.plan, s.plan.Throttled(), s)
	if end != throttle.EndNone {
		s.front.process.metrics.Waits.WithLabelValues(string(end)).Inc()
	}
	if end != throttle.EndGone {
		v = s.complete(d)
	}
}

// Ask implements [throttle.Asker].
func (s *Stream) Ask(checks []counter.Check) (core.Decision, bool) {
	d, err := s.front.store.enforcer.Ask(&s.plan, checks)
	return d, err == nil
}

// Replan implements [throttle.Asker].
func (s *Stream) Replan(p *core.Plan) {
	if d := s.front.store.directory; d != nil {
		p.UseDirectory(d)
	}
	p.Add(s.version.Ruleset, &s.request.View)
	if len(p.Unresolved()) > 0 {
		s.resolveIn(p)
	}
}
