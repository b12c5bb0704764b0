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
	// waitingMax is the maximum number of requests in the queue. Further requests are treated as in
	// an overload.
	waitingMax = 8192
	// As soon as the queue has crowdedFrom requests, a source that has sourceMax of them may add no
	// more, so that one client cannot fill the queue.
	crowdedFrom = waitingMax / 4
	sourceMax   = waitingMax / 8
	// sourceCounts is the number of counts in the field sources. There may be more sources, and
	// then several of them share a count.
	sourceCounts = 1024
	// askersMax is the greatest number of goroutines that ask the store. Each of them asks about at
	// most batchMax requests at once.
	askersMax = 16
	batchMax  = 64
	// askersUsual is how many of these goroutines usually ask at the same time. The store has as
	// many connections. Meanwhile other requests wait, so that the next call can ask about all of
	// them together. If a request has been in the queue for the time helpAfter, another goroutine
	// helps, because calls may wait for units of other regions or for the directory.
	askersUsual = redisstore.LanesDefault
	helpAfter   = 2 * time.Millisecond
	// queueTime is how long a request may be in the queue. After that time, the request is treated
	// as in an overload and not as in an outage, because the store has answered other requests in
	// the meantime.
	queueTime = time.Second
	// startTime bounds how long the first requests wait until the store has tried to connect.
	startTime = 800 * time.Millisecond
	// watchEvery is the interval at which overdue requests are looked for.
	watchEvery = 100 * time.Millisecond
)

var (
	errQueued = fmt.Errorf("%w: the request was in the queue of the module for more than %v", counter.ErrOverloaded, queueTime)
	errFull   = fmt.Errorf("%w: the queue of the module is full", counter.ErrOverloaded)
	errLate   = fmt.Errorf("%w: the store has not ended a call in time", counter.ErrOverloaded)
	errAway   = fmt.Errorf("%w: the store has not ended a call in time", counter.ErrUnavailable)
)

// lateDeadline returns how long a request may wait after it was taken from the queue, given the
// timeout of the store. Packages redisstore and leasestore bound their calls, so every store ends a
// call before that time. The deadline matters only if a store has a bug and exceeds its bounds. The
// time in the queue does not count, because a client can prolong it. After the deadline, on_error
// decides only if the store is known to be away. Otherwise the request is denied as in an overload,
// because clients may have caused the delay.
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
	sources [sourceCounts]int32 // number of requests in the queue, by source
	idle    int                 // goroutines that wait for requests
	active  int                 // goroutines that ask the store, or are about to ask it
	stopped bool
	watched bool // a call of watch is scheduled
	helped  bool // a call of help is scheduled
}

// waitList is the list of the requests that wait, in the order of their arrival. The requests at
// its front are taken: a goroutine has taken them from the queue and asks the store about them. The
// others are still in the queue.
type waitList struct {
	first, last *Stream
	queue       *Stream // the first request that is not taken
	queued      int
}

func newAsker(p *Process, e *enforce.Enforcer, late time.Duration, away func() bool) *asker {
	a := &asker{process: p, enforcer: e, late: late, away: away, started: make(chan struct{})}
	a.more.L = &a.mu
	return a
}

// awaitStart lets the store connect, for at most startTime, and then lets the goroutines ask it.
// Otherwise the first requests would fail on a busy machine, where it takes longer to connect than
// a call may take.
func (a *asker) awaitStart(start func(context.Context)) {
	defer close(a.started)
	defer a.process.guard()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	start(ctx)
}

// asker.enqueue adds a request to the queue. It returns false if the queue has no room for the
// request. The argument named announced reports whether the caller will call the method named
// announce later.
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

// asker.announce wakes a goroutine at the end of a worker's turn. The goroutine sends the requests
// of that turn to the store together.
func (a *asker) announce() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting.queue != nil && !a.stopped {
		a.wakeUsual()
	}
}

// asker.wakeUsual lets one more goroutine call the store if fewer than askersUsual do. Otherwise it
// schedules a call of asker.help. The lock must be held.
func (a *asker) wakeUsual() {
	if a.active < askersUsual {
		a.startAsking()
	} else if !a.helped {
		a.helped = true
		time.AfterFunc(helpAfter, a.help)
	}
}

// asker.startAsking wakes an idle goroutine, or starts one if there are fewer than askersMax. The
// lock must be held.
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

// asker.help lets one more goroutine call the store if the first request in the queue has waited
// for helpAfter. While the queue is not empty, a timer calls asker.help again after helpAfter.
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

// asker.stop ends the goroutines. It must not be called while a request waits.
func (a *asker) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
	a.more.Broadcast()
}

// asker.next waits until the queue has requests, takes the first ones, and appends them to the
// argument named into. It returns nil after the method named stop was called.
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

// asker.unlist removes requests from the list shortly before they are decided. It skips nil
// entries.
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

// asker.watch ends the wait of requests that have waited for too long. It runs at intervals as long
// as requests wait.
func (a *asker) watch() {
	defer a.process.guard()
	a.endOverdue(time.Now())
}

// endOverdue ends the wait of the requests that, at the given time, have waited for too long.
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

// asker.overdue removes from the list the requests that have waited for too long. It returns those
// that were in the queue and those about which the store was asked. If requests still wait, it
// schedules the next call of watch.
func (a *asker) overdue(now time.Time) (queued, late []*Stream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for s := a.waiting.first; s != nil && s.taken && now.Sub(s.takenAt) > a.late; s = a.waiting.first {
		s.holds.Add(1) // because the goroutine still uses the request
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

// waitList.push appends a request to the list and thereby to the queue.
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

// waitList.take takes the first request of the queue, which stays in the list.
func (l *waitList) take() *Stream {
	s := l.queue
	s.taken, l.queue = true, s.next
	l.queued--
	return s
}

// waitList.remove removes a request from the list. The request must have been taken from the queue.
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
