// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Bounds of the requests that wait for the store.
const (
	// waitingMax is the maximum number of requests in the queue. Further requests are denied as in
	// an overload.
	waitingMax = 8192
	// If the queue has at least crowdedFrom requests, no source may have more than sourceMax of
	// them, so that one client cannot fill the queue.
	crowdedFrom = waitingMax / 4
	sourceMax   = waitingMax / 8
	// sourceCounts is the number of counts of sources. Several sources can share a count.
	sourceCounts = 1024
	// askersMax is the greatest number of goroutines that ask the store. Each asks about up to
	// batchMax requests at once.
	askersMax = 16
	batchMax  = 64
	// askersUsual is how many of them usually ask at the same time, as many as the store has
	// connections. The other requests wait, so that one call can ask about all that arrive in the
	// meantime. Another goroutine helps if a request has been in the queue for the time helpAfter,
	// because calls may wait for units of other regions or for the directory.
	askersUsual = redisstore.LanesDefault
	helpAfter   = 2 * time.Millisecond
	// queueTime is how long a request may be in the queue. After that time, the request is denied
	// as in an overload, because the store has answered other requests in the meantime.
	queueTime = time.Second
	// startTime is how long the first requests wait for the first connection to the store.
	startTime = 800 * time.Millisecond
	// watchEvery is the interval at which the requests that wait are examined.
	watchEvery = 100 * time.Millisecond
)

var (
	errQueued = fmt.Errorf("%w: the request was in the queue of the module for more than %v", counter.ErrOverloaded, queueTime)
	errFull   = fmt.Errorf("%w: the queue of the module is full", counter.ErrOverloaded)
	errLate   = fmt.Errorf("%w: the store has not ended a call in time", counter.ErrOverloaded)
	errAway   = fmt.Errorf("%w: the store has not ended a call in time", counter.ErrUnavailable)
)

// lateDeadline returns how long a request may wait after it was taken from the queue, given the
// timeout of the store. Every store ends a call earlier, by the bounds in packages redisstore and
// leasestore. The deadline applies only if a store has a bug and exceeds its bounds. The time in
// the queue does not count, because a client can prolong it. After the deadline, on_error decides
// only if the store is known to be away. Otherwise the request is denied as in an overload, because
// clients may have caused the delay.
func lateDeadline(timeout time.Duration) time.Duration { return 4*time.Second + 6*timeout }

// asker asks the store about requests that wait, in the order of their arrival.
type asker struct {
	process  *Process
	enforcer *enforce.Enforcer
	late     time.Duration
	away     func() bool   // reports whether the store is known to be away
	started  chan struct{} // closed when the store has tried to connect

	mu      sync.Mutex
	more    sync.Cond
	waiting waitList
	sources [sourceCounts]int32 // by source, the number of requests in the queue
	idle    int                 // goroutines that wait for requests
	active  int                 // goroutines that ask, or are about to
	stopped bool
	watched bool // a call of watch is scheduled
	helped  bool // a call of help is scheduled
}

// waitList is the list of the requests that wait, in the order of their arrival. The requests at
// its front are taken: a goroutine asks about them. The other requests are in the queue.
type waitList struct {
	first, last *Stream
	queue       *Stream // the first that is not taken
	queued      int
}

func newAsker(p *Process, e *enforce.Enforcer, late time.Duration, away func() bool) *asker {
	a := &asker{process: p, enforcer: e, late: late, away: away, started: make(chan struct{})}
	a.more.L = &a.mu
	return a
}

// awaitStart lets the goroutines ask from the moment when the store has tried to connect. Without
// it, the first requests would fail on a busy machine, because a connection takes longer than the
// timeout of a call.
func (a *asker) awaitStart(start func(context.Context)) {
	defer close(a.started)
	defer a.process.guard()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	start(ctx)
}

// The method enqueue adds a request to the queue. The method returns false if the queue has no room
// for it. The argument announced reports whether the method announce is called later.
func (a *asker) enqueue(s *Stream, announced bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	source := &a.sources[s.from]
	if a.stopped || a.waiting.queued >= waitingMax || a.waiting.queued >= crowdedFrom && *source >= sourceMax {
		return false
	}
	*source++
	a.waiting.push(s)
	if !announced {
		a.wakeUsual()
	}
	if !a.watched {
		a.watched = true
		time.AfterFunc(watchEvery, a.watch)
	}
	return true
}

// The method announce makes a goroutine ask about the requests that were added in one turn of a
// worker, so that it asks about them together.
func (a *asker) announce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting.queue != nil && !a.stopped {
		a.wakeUsual()
	}
}

// wakeUsual makes one more goroutine ask, or makes sure that another one helps later. The lock must
// be held.
func (a *asker) wakeUsual() {
	if a.active < askersUsual {
		a.startAsking()
	} else if !a.helped {
		a.helped = true
		time.AfterFunc(helpAfter, a.help)
	}
}

// The method startAsking makes one more goroutine ask, if there may be one. The lock must be held.
func (a *asker) startAsking() {
	switch {
	case a.idle > 0:
		a.idle--
		a.active++
		a.more.Signal()
	case a.active < askersMax:
		a.active++
		go a.work()
	}
}

// The method help makes one more goroutine ask if a request has been in the queue for helpAfter.
// The method runs at intervals while there is a queue.
func (a *asker) help() {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.waiting.queue
	if a.helped = first != nil && !a.stopped; !a.helped {
		return
	}
	if time.Since(first.begun) >= helpAfter {
		a.startAsking()
	}
	time.AfterFunc(helpAfter, a.help)
}

// The method stop ends the goroutines. No request may wait any more.
func (a *asker) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.more.Broadcast()
}

// The method next waits for requests and appends the first ones of the queue to the argument into.
func (a *asker) next(into []*Stream) []*Stream {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.waiting.queue == nil {
		if a.stopped {
			return nil
		}
		a.active--
		a.idle++
		a.more.Wait() // startAsking counts this goroutine as active
	}
	now := time.Now()
	for len(into) < batchMax && a.waiting.queue != nil {
		s := a.waiting.take()
		s.takenAt = now
		a.sources[s.from]--
		into = append(into, s)
	}
	return into
}

// The method unlist removes requests from the list, because they are about to be decided. Nil
// entries are skipped.
func (a *asker) unlist(all ...*Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range all {
		if s != nil && s.listed {
			a.waiting.remove(s)
		}
	}
}

func (a *asker) work() {
	<-a.started
	b := batch{asker: a}
	for {
		if b.streams = a.next(b.streams[:0]); len(b.streams) == 0 {
			return
		}
		b.run()
	}
}

// The method watch ends requests that have waited for too long. The method runs at intervals while
// requests wait.
func (a *asker) watch() {
	defer a.process.guard()
	a.endOverdue(time.Now())
}

// endOverdue ends the requests that have waited for too long at the given time.
func (a *asker) endOverdue(now time.Time) {
	queued, late := a.overdue(now)
	for _, s := range queued {
		a.enforcer.Failed(errQueued)
		s.wakeRequest(s.decideOverloaded(errQueued))
	}
	if len(late) == 0 {
		return
	}
	state, err := stateLate, errLate
	if a.away() {
		state, err = stateAway, errAway
	}
	for _, s := range late {
		a.enforcer.Failed(err)
		s.giveUp(state)
	}
}

// The method overdue removes from the list the requests that have waited for too long: in the
// queue, or for the store. The method schedules the next call of watch if requests still wait.
func (a *asker) overdue(now time.Time) (queued, late []*Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := a.waiting.first; s != nil && s.taken && now.Sub(s.takenAt) > a.late; s = a.waiting.first {
		s.holds.Add(1) // the request's goroutine still uses it
		a.waiting.remove(s)
		late = append(late, s)
	}
	for s := a.waiting.queue; s != nil && now.Sub(s.begun) > queueTime; s = a.waiting.queue {
		a.sources[s.from]--
		a.waiting.take()
		a.waiting.remove(s)
		queued = append(queued, s)
	}
	if a.watched = a.waiting.first != nil; a.watched {
		time.AfterFunc(watchEvery, a.watch)
	}
	return queued, late
}

// The method push appends a request, which is in the queue.
func (l *waitList) push(s *Stream) {
	s.listed, s.taken, s.before, s.next = true, false, l.last, nil
	if l.last == nil {
		l.first = s
	} else {
		l.last.next = s
	}
	if l.last = s; l.queue == nil {
		l.queue = s
	}
	l.queued++
}

// The method take takes the first request of the queue, which stays in the list.
func (l *waitList) take() *Stream {
	s := l.queue
	s.taken, l.queue = true, s.next
	l.queued--
	return s
}

// The method remove removes a request that is taken.
func (l *waitList) remove(s *Stream) {
	if s.before == nil {
		l.first = s.next
	} else {
		s.before.next = s.next
	}
	if s.next == nil {
		l.last = s.before
	} else {
		s.next.before = s.before
	}
	s.listed, s.before, s.next = false, nil, nil
}
