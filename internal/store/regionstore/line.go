// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/survive"
)

// These are the bounds of the requests that wait for loans.
const (
	WaitersMax = 1024 // in a process
	LineMax    = 512  // for one counter
	SourceMax  = 256  // of one address, for all counters
	waitMax    = time.Second

	// gatherTime is how long a question waits for further requests of the same burst, so that it
	// asks for the units that all of them need.
	gatherTime = 2 * time.Millisecond
	// startTime is the interval at which a line checks whether this process can already receive the
	// answers to a question.
	startTime = 10 * time.Millisecond
	// movesMax bounds how often a line asks again because units are under way between other
	// regions. If clients use up the limit in several regions, units can be under way for a long
	// time.
	movesMax = 3
	// refusedTime is how long no request waits for a counter after the other regions had no units,
	// or did not answer in time.
	refusedTime = time.Duration(loanTime) * time.Microsecond
	// refusedMax bounds the time for which an agent can ask that no request waits.
	refusedMax = 5 * time.Second
	// listenAgain is the pause before the next attempt to hear the answers.
	listenAgain = time.Second
)

// lines are the requests that wait for loans, by their counters.
type lines struct {
	store   *Store
	started atomic.Bool
	hears   atomic.Bool    // whether the agents' answers are heard
	failed  atomic.Bool    // whether the last attempt to hear them failed
	active  atomic.Int64   // the number of lines
	refused []atomic.Int64 // the refusals, by the hash of a key
	waitMax time.Duration
	origin  string // the first part of the IDs of questions
	number  atomic.Uint64

	mu      sync.Mutex
	byKey   map[string]*line
	waiters int
	sources map[uint32]int         // the number of waiters by [counter.Check.Source]
	forget  func(c *counter.Check) // see [Store.ForgetWith]
}

// line is the requests that wait for units of one counter, in the order of their arrival.
type line struct {
	check    counter.Check // with a key of its own
	question Question
	waiters  []*waiter
	asking   bool // a question is being sent, or under way
	closed   bool // the line is no longer in the table
	id       string
	asked    time.Time // when the question was sent
	heard    int64     // the number of agents that heard the question; -1 while it is unknown
	done     int64     // the number of agents that are done with it
	more     bool      // one of them said that another question might bring units
	moving   bool      // one of them said that units are under way between other regions
	moves    int       // how often the line has asked again for such units
	refused  time.Time // what an agent asked for: after the line is closed, no request waits before this time
}

// waiter is a request that waits.
type waiter struct {
	cost   int64
	source uint32
	wake   chan struct{} // receives one value when the request is to call the store
	woken  bool
	last   bool // it must not wait again
}

func (l *lines) begin(s *Store) {
	l.store, l.waitMax, l.byKey = s, cmp.Or(s.agency.WaitMax, waitMax), make(map[string]*line)
	l.sources = make(map[uint32]int)
	l.refused = make([]atomic.Int64, placesMax)
	l.origin = rand.Text() + "-"
}

// lines.listen subscribes to the agents' answers, once.
func (l *lines) listen() {
	s := l.store
	if s.agency.Listen == nil || l.started.Swap(true) {
		return
	}
	survive.Go(&s.running, s.logger, func() {
		for warned := false; s.ctx.Err() == nil; {
			err := s.agency.Listen(s.ctx, func() { l.hears.Store(true) }, l.receive)
			l.failed.Store(true)
			l.hears.Store(false)
			l.closeAll() // answers may have been missed
			if err != nil && s.ctx.Err() == nil && !warned {
				warned = true
				s.logger.Warn("the answers of the region's agents cannot be heard, so no request waits for a loan: let this user of Redis "+
					"SUBSCRIBE to the channel", "channel", AnswerChannel, "error", err)
			}
			pause := time.NewTimer(listenAgain)
			select {
			case <-s.ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
	})
}

// refusalBits is the number of bits of a refusal that identify the counter. The other bits hold the
// millisecond until which no request waits for it. Of the counters that share a place, only the one
// that was refused last is refused. So a client with many counters does not end the waits for
// counters of other clients.
const refusalBits = 16

// lines.refusal returns the place of a counter's refusal, and the bits that identify it.
func (l *lines) refusal(key []byte) (place *atomic.Int64, id int64) {
	hash := maphash.Bytes(l.store.seed, key)
	return &l.refused[hash%placesMax], int64(hash >> (64 - refusalBits))
}

// lines.refuse lets no request wait for a counter until an instant. If a later instant is in force
// for the counter, it remains in force.
func (l *lines) refuse(key []byte, until time.Time) {
	place, id := l.refusal(key)
	next, last := until.UnixMilli()<<refusalBits|id, place.Load()
	if last&(1<<refusalBits-1) != id || last < next {
		place.Store(next)
	}
}

// lines.refuses reports whether no request may wait for a check's counter at present.
func (l *lines) refuses(c *counter.Check) bool {
	place, id := l.refusal(c.Key)
	last := place.Load()
	return l.store.agency.Listen == nil || len(c.Key) > KeyBytesMax ||
		last&(1<<refusalBits-1) == id && time.Now().UnixMilli() < last>>refusalBits
}

// lines.full reports whether no further request can wait for a check's counter. The caller holds
// the lock.
func (l *lines) full(c *counter.Check) bool {
	n := l.byKey[string(c.Key)]
	return l.waiters >= WaitersMax || c.Source != 0 && l.sources[c.Source] >= SourceMax || n != nil && len(n.waiters) >= LineMax
}

// lines.hasPlace reports whether a request could join the line of a check's counter.
func (l *lines) hasPlace(c *counter.Check) bool {
	if l.refuses(c) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.full(c)
}

// lines.join adds a request to the line of a check's counter. It returns nil if the request must
// not wait.
func (l *lines) join(c *counter.Check) (*line, *waiter) {
	if l.refuses(c) {
		return nil, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full(c) {
		return nil, nil
	}
	n := l.byKey[string(c.Key)]
	if n == nil {
		n = &line{check: *c, question: questionOf(c)}
		n.check.Key = n.question.Key
		n.check.Bounds = n.question.Bounds
		l.byKey[string(c.Key)] = n
		l.active.Add(1)
	}
	w := &waiter{cost: c.Cost, source: c.Source, wake: make(chan struct{}, 1)}
	n.waiters = append(n.waiters, w)
	l.waiters++
	l.sources[w.source]++
	l.ask(n)
	return n, w
}

// lines.ask asks the agents for the units that a line needs, unless a question of the line is under
// way. The caller holds the lock.
func (l *lines) ask(n *line) {
	if n.asking || n.closed {
		return
	}
	n.asking = true
	l.send(n, gatherTime)
}

func (l *lines) send(n *line, after time.Duration) {
	time.AfterFunc(after, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(n.waiters) > 0 {
			n.question.Source = n.waiters[0].source
		}
		if !l.store.push(ticket{question: n.question, line: n}) {
			l.close(n)
		}
	})
}

// lines.prepare fills in how many units the waiting requests of a line need now. It reports whether
// the question is to be sent.
func (l *lines) prepare(t *ticket) bool {
	n := t.line
	if n == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case n.closed || len(n.waiters) == 0:
		n.asking = false
		return false
	case !l.hears.Load() && l.failed.Load():
		l.close(n)
		return false
	case !l.hears.Load():
		l.send(n, startTime)
		return false
	}
	n.id, n.heard, n.done, n.more, n.moving = l.origin+strconv.FormatUint(l.number.Add(1), 36), -1, 0, false, false
	n.asked = time.Now()
	q := &t.question
	q.ID, q.Short, q.Need = n.id, true, 0
	for _, w := range n.waiters {
		q.Need = min(q.Need+w.cost, counter.CountMax)
	}
	q.Want = min(q.Need+n.check.Limit.Capacity(), counter.CountMax)
	return true
}

// lines.sent is called after a question was published. It records how many agents have received the
// question.
func (l *lines) sent(t *ticket, heard int64, err error) {
	n := t.line
	if n == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case n.id != t.question.ID || n.closed:
	case err != nil || heard == 0:
		l.close(n)
	default:
		n.heard = heard
		l.end(n)
	}
}

// lines.receive processes a message of an agent.
func (l *lines) receive(message string) {
	if l.active.Load() == 0 && !strings.Contains(message, "refused_ms") {
		return
	}
	var a Answer
	if json.Unmarshal([]byte(message), &a) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.byKey[string(a.Key)]
	if a.RefusedMillis > 0 {
		until := time.Now().Add(min(refusedMax, time.Duration(a.RefusedMillis)*time.Millisecond))
		if n == nil {
			l.refuse(a.Key, until)
		} else {
			n.refused = until // another agent may still bring units
		}
	}
	if n == nil {
		return
	}
	if a.Units > 0 {
		l.wake(n, a.Units)
	}
	for _, id := range a.Done {
		if id == n.id && n.asking {
			n.done++
			n.more, n.moving = n.more || a.More, n.moving || a.Moving
			l.end(n)
		}
	}
}

// lines.end ends the question of a line when all agents that have received it are done. Requests
// that still wait call the store once more. If the other regions have no more units, this call is
// the last one of these requests. The caller holds the lock.
func (l *lines) end(n *line) {
	switch {
	case n.heard < 0 || n.done < n.heard:
		return
	case n.more:
	case n.moving && n.moves < movesMax:
		n.moves++
	default:
		l.close(n)
		return
	}
	n.asking, n.id = false, ""
	l.wake(n, counter.CountMax)
}

// lines.close removes a line from the table. Its requests call the store for the last time, and
// further requests do not wait for a short time. The caller holds the lock.
func (l *lines) close(n *line) {
	if !n.closed {
		n.closed, n.asking = true, false
		delete(l.byKey, string(n.check.Key))
		l.active.Add(-1)
		if len(n.waiters) > 0 {
			l.refuse(n.check.Key, time.Now().Add(refusedTime))
			l.refuse(n.check.Key, n.refused)
		}
	}
	if l.forget != nil {
		l.forget(&n.check)
	}
	for _, w := range n.waiters {
		w.last = true
		w.call()
	}
}

// lines.closeAll closes all lines.
func (l *lines) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.byKey {
		l.close(n)
	}
}

// lines.late closes a line whose question has been under way for half of the time that a request
// may wait, or longer. An agent that has restarted, or that cannot publish, never answers the
// question. Without this, the line would ask no other question, and later requests would wait in
// vain.
func (l *lines) late(n *line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.asking && !n.asked.IsZero() && time.Since(n.asked) >= l.waitMax/2 {
		l.close(n)
	}
}

// lines.wake wakes the first requests of a line, as many as the given units suffice for. The caller
// holds the lock.
func (l *lines) wake(n *line, units int64) {
	if l.forget != nil {
		l.forget(&n.check)
	}
	first := true
	for _, w := range n.waiters {
		if w.woken {
			continue
		}
		if units -= w.cost; units < 0 && !first { // the first may use units that arrived before
			return
		}
		first, w.woken = false, true
		w.call()
	}
}

// waiter.call tells a request to call the store. If the request has not noticed the previous signal
// yet, the two signals count as one.
func (w *waiter) call() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// lines.isLast reports whether the request's next call of the store is the last.
func (l *lines) isLast(w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.last
}

// lines.again lets a request wait once more, at its place in the line.
func (l *lines) again(n *line, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.woken = false
	l.ask(n)
}

// lines.leave removes a request from its line.
func (l *lines) leave(n *line, w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range n.waiters {
		if n.waiters[i] == w {
			n.waiters = append(n.waiters[:i], n.waiters[i+1:]...)
			l.waiters--
			if l.sources[w.source]--; l.sources[w.source] == 0 {
				delete(l.sources, w.source)
			}
			break
		}
	}
	if len(n.waiters) == 0 && !n.closed {
		l.close(n)
	}
}
