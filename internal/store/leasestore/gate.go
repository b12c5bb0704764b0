// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
)

// A gate bounds the calls that are under way for one counter. Of thousands of requests that a
// client sends at once, at most as many can be admitted as its limit has units left. So sending
// more calls than that number plus one would be useless. The other requests wait in this process.
// When a call is denied, they are denied from memory. When a call is admitted, as many further
// requests are sent as there are units. So a burst of any size costs about as many calls as the
// limit admits requests, and requests of other clients do not queue behind it. At a counter that
// several clients share, the clients take turns.

// Bounds of the gates.
const (
	// gateCallsMax bounds the calls under way for one counter. gateCallsMax is two full pipelines
	// of a Redis store, so that a counter shared by all clients is not slowed down.
	gateCallsMax = 256
	// gateWaitingMax bounds the requests that wait at one gate. Further requests are denied.
	gateWaitingMax = 1 << 15
	// sourcePlaces is twice the number of requests of one source that may wait at all gates
	// together. So half of gateWaitingMax may wait, and one client does not fill a gate that it
	// shares with others.
	sourcePlaces = gateWaitingMax
	// gatesWaitingMax bounds the requests that wait at all gates together. Further requests are
	// denied.
	gatesWaitingMax = 1 << 16
	// gateWaitMax bounds how long a request waits for its turn. The store answers calls during that
	// time: a call that fails ends the wait of every request behind it.
	gateWaitMax = counter.Second
	// gateMissesMax bounds the search for waiting requests that a remembered denial covers. After
	// that many requests in a row that no denial covers, the other requests remain in the queue.
	gateMissesMax = 4
)

var (
	errGateFull   = notSentError{fmt.Errorf("%w: too many requests wait for one counter", counter.ErrOverloaded)}
	errSourceFull = notSentError{fmt.Errorf("%w: too many requests of one address wait for counters", counter.ErrOverloaded)}
	errGateLate   = notSentError{fmt.Errorf("%w: the request waited for its turn at a counter for too long", counter.ErrOverloaded)}
)

// gates holds the gates of all counters with calls under way. A gate exists while it is used.
type gates struct {
	waiting atomic.Int64
	sources *sources.Counts // the waiting requests by source
	shards  [locks]gateShard
}

type gateShard struct {
	mu   sync.Mutex
	busy []*gate
	free []*gate
	_    [8]byte
}

// gate is the state of the calls for one counter. The lock of its shard guards it.
type gate struct {
	id identity
	// units left of the limit according to the last answer; the capacity before the first answer
	remaining int64
	calls     int // under way
	// more than 0 while queued requests are being denied: the queue is then empty, but the gate is
	// still in use
	pins  int
	queue sources.Lines[*queued] // the waiting requests
}

// pass identifies one call at its gate. The zero pass is for a call that does not take from a
// counter.
type pass struct {
	shard *gateShard // nil means that there is no gate
	id    identity
	check int // the index of the check of the gate's counter
}

// queued is a request that waits at a gate. The lock of the shard guards the request until it is
// decided.
type queued struct {
	pass
	kind    kind
	cost    int64
	checks  []counter.Check
	results []counter.Result
	source  sources.Source
	since   counter.Micros
	turn    turn
	err     error
	done    chan struct{} // receives one value, when turn is set
}

// queued.line returns the source in whose line the request waits. Each source has its own line, so
// a client with thousands of requests at a counter that all clients share delays almost only its
// own requests.
func (q *queued) line() uint32 { return q.checks[q.check].Source }

// turn is the decision about a request that waits at a gate.
type turn uint8

const (
	turnNone turn = iota // the request still waits
	turnCall             // the request makes its call
	turnDone             // the results are those that the store would return
	turnFail             // the request fails with an error
)

func newQueued() any { return &queued{done: make(chan struct{}, 1)} }

// narrowestCheck returns the check whose counter admits the fewest requests, or -1 if no check
// takes from a counter. Checks with reserved units need nothing from the store, so they are
// skipped.
func narrowestCheck(checks []counter.Check, parts []part) int {
	at, fewest := -1, int64(0)
	for i := range checks {
		c := &checks[i]
		if c.Limit == nil || c.Op != counter.OpTake || c.Cost <= 0 || c.Shadow || parts != nil && parts[i].role != sends {
			continue
		}
		if n := c.Limit.Capacity() / c.Cost; at < 0 || n < fewest {
			at, fewest = i, n
		}
	}
	return at
}

// Store.maxCalls returns how many calls of a cost may be under way.
func (s *Store) maxCalls(g *gate, k kind, cost int64) int {
	if k != takes || s.denials == nil { // each request must reach the store
		return gateCallsMax
	}
	return int(min(max(0, g.remaining)/cost+1, gateCallsMax))
}

// Store.enter lets a call pass its gate, or queues it. If the returned request is not nil, the
// caller must call [Store.awaitTurn]. After a call that has passed, the caller must call
// [Store.leaveGate].
func (s *Store) enter(k kind, checks []counter.Check, results []counter.Result, parts []part) (p pass, q *queued, err error) {
	at := -1
	if k <= shadows {
		at = narrowestCheck(checks, parts)
	}
	if at < 0 {
		return pass{}, nil, nil
	}
	c := &checks[at]
	id := s.identify(c.Key)
	p = pass{&s.gates.shards[id[1]%locks], id, at}
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	g := p.shard.open(id, c.Limit)
	if g.queue.Len() == 0 && g.calls < s.maxCalls(g, k, c.Cost) {
		g.calls++
		return p, nil, nil
	}
	if g.queue.Len() >= gateWaitingMax || s.gates.waiting.Load() >= gatesWaitingMax {
		return p, nil, errGateFull
	}
	source := s.gates.sourceOf(c, id)
	if !source.Enter(sourcePlaces) {
		source.Leave()
		return p, nil, errSourceFull
	}
	q = s.pools.queue.Get().(*queued)
	q.pass, q.kind, q.cost, q.checks, q.results, q.source = p, k, c.Cost, checks, results, source
	q.since, q.turn, q.err = s.now(), turnNone, nil
	g.queue.Push(q.line(), q)
	s.gates.waiting.Add(1)
	return p, q, nil
}

// sourceOf returns the entry of g.sources for the source of a check, or for its counter if the
// source is unknown.
func (g *gates) sourceOf(c *counter.Check, id identity) sources.Source {
	if c.Source != 0 {
		return g.sources.Of(uint64(c.Source))
	}
	return g.sources.Of(id[0])
}

// gates.left is invoked for a request that no longer waits. It lowers the counts of waiting
// requests.
func (g *gates) left(q *queued) {
	g.waiting.Add(-1)
	q.source.Leave()
}

// awaitTurn waits until the request is decided or its turn comes. The result named done reports
// whether the results are set. If they are not set and err is nil, the request has passed the gate
// and must make its call.
func (s *Store) awaitTurn(ctx context.Context, q *queued) (done bool, err error) {
	select {
	case <-q.done:
	case <-ctx.Done():
		if s.leaveQueue(q) {
			err = notSentError{contextError(ctx)}
			break
		}
		<-q.done // the request is being decided at this moment
	}
	if err == nil {
		done, err = q.turn == turnDone, q.err
	}
	*q = queued{done: q.done}
	s.pools.queue.Put(q)
	return done, err
}

// contextError returns the error of a request whose context ends while the request waits in this
// process. A deadline that has passed is an overload and not an outage: the deadline can be so
// early that a burst of one client makes a request miss it.
func contextError(ctx context.Context) error {
	failure := counter.ErrUnavailable
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		failure = counter.ErrOverloaded
	}
	return fmt.Errorf("%w: %w", failure, context.Cause(ctx))
}

// leaveQueue removes a request from the queue. leaveQueue returns false if the request is no longer
// in it.
func (s *Store) leaveQueue(q *queued) bool {
	q.shard.mu.Lock()
	defer q.shard.mu.Unlock()
	g := q.shard.find(q.id)
	if g == nil || !g.queue.Remove(q.line(), func(other *queued) bool { return other == q }) {
		return false
	}
	s.gates.left(q)
	q.shard.close(g)
	return true
}

// leaveGate ends a call that has passed the gate. leaveGate lets waiting requests pass, or decides
// them by the call's outcome.
func (s *Store) leaveGate(ctx context.Context, p pass, k kind, checks []counter.Check, results []counter.Result, err error) {
	if p.shard == nil {
		return
	}
	failure := sharedError(ctx, err)
	p.shard.mu.Lock()
	g := p.shard.find(p.id)
	g.calls--
	denied := false
	if err == nil {
		g.remaining = results[p.check].Remaining
		denied = k == takes && s.denials != nil && anyDenied(checks, results)
	}
	if g.queue.Len() == 0 || failure == nil && !denied {
		s.proceed(g)
		p.shard.close(g)
		p.shard.mu.Unlock()
		return
	}
	asked := g.queue
	g.queue = sources.Lines[*queued]{}
	g.pins++
	p.shard.mu.Unlock()
	if failure != nil {
		s.fail(&asked, failure)
	} else {
		s.deny(&asked)
	}
	p.shard.mu.Lock()
	defer p.shard.mu.Unlock()
	g.pins--
	g.queue.Prepend(asked)
	s.proceed(g)
	p.shard.close(g)
}

// Store.fail decides all requests of a queue. Those that cannot be denied from memory fail.
func (s *Store) fail(queue *sources.Lines[*queued], failure error) {
	failure = notSentError{failure}
	for q, ok := queue.Pop(); ok; q, ok = queue.Pop() {
		if q.kind == takes && s.denyFromMemory(q.checks, q.results, false) {
			s.decide(q, turnDone, nil)
			continue
		}
		s.decide(q, turnFail, failure)
	}
}

// Store.deny decides those requests of a queue that can be denied from memory. The others remain.
func (s *Store) deny(queue *sources.Lines[*queued]) {
	var left sources.Lines[*queued]
	for misses := 0; misses < gateMissesMax; {
		q, ok := queue.Pop()
		if !ok {
			break
		}
		if q.kind == takes && s.denyFromMemory(q.checks, q.results, false) {
			misses = 0
			s.decide(q, turnDone, nil)
			continue
		}
		misses++
		left.Push(q.line(), q)
	}
	queue.Prepend(left)
}

// Store.proceed lets as many requests pass as the counter has room for. The caller holds the lock.
func (s *Store) proceed(g *gate) {
	for q, ok := g.queue.Peek(); ok; q, ok = g.queue.Peek() {
		late := s.now()-q.since > gateWaitMax
		if !late && g.calls >= s.maxCalls(g, q.kind, q.cost) {
			return
		}
		g.queue.Pop()
		if late {
			s.decide(q, turnFail, errGateLate)
			continue
		}
		g.calls++
		s.decide(q, turnCall, nil)
	}
}

// Store.decide sets the decision about a request. From then on, the request's goroutine owns q.
func (s *Store) decide(q *queued, t turn, err error) {
	s.gates.left(q)
	q.turn, q.err = t, err
	q.done <- struct{}{}
}

// gateShard.find returns the gate of a counter, or nil if there is none. The caller holds the lock.
func (sh *gateShard) find(id identity) *gate {
	for _, g := range sh.busy {
		if g.id == id {
			return g
		}
	}
	return nil
}

// gateShard.open returns the gate of a counter, and creates it if necessary. The caller holds the
// lock.
func (sh *gateShard) open(id identity, l *counter.Limit) *gate {
	if g := sh.find(id); g != nil {
		return g
	}
	var g *gate
	if last := len(sh.free) - 1; last >= 0 {
		g, sh.free = sh.free[last], sh.free[:last]
	} else {
		g = new(gate)
	}
	g.id, g.remaining = id, l.Capacity()
	sh.busy = append(sh.busy, g)
	return g
}

// gatesKept is how many unused gates a shard keeps.
const gatesKept = 64

// gateShard.close frees a gate that has no calls, no pins and no queue. The caller holds the lock.
func (sh *gateShard) close(g *gate) {
	if g.calls > 0 || g.pins > 0 || g.queue.Len() > 0 {
		return
	}
	for i, other := range sh.busy {
		if other == g {
			last := len(sh.busy) - 1
			sh.busy[i], sh.busy[last] = sh.busy[last], nil
			sh.busy = sh.busy[:last]
			break
		}
	}
	if len(sh.free) < gatesKept {
		sh.free = append(sh.free, g)
	}
}

// callInTurn makes the call of an attempt after it has passed its gate. An attempt for which other
// requests wait does not wait itself.
func (a *attempt) callInTurn(ctx context.Context) error {
	if a.owned > 0 || a.recording != nil {
		return a.call(ctx)
	}
	p, q, err := a.store.enter(a.kind, a.checks, a.results, a.parts)
	if err != nil {
		a.abandon()
		return err
	}
	return a.takeTurn(ctx, p, q)
}

// takeTurn makes the call of an attempt, after waiting if it is queued. If no call is made, the
// reserved units are put back.
func (a *attempt) takeTurn(ctx context.Context, p pass, q *queued) error {
	s := a.store
	if q != nil {
		if done, err := s.awaitTurn(ctx, q); done || err != nil {
			a.abandon()
			return err
		}
	}
	err := errPanicked
	defer func() { s.leaveGate(ctx, p, a.kind, a.checks, a.results, err) }()
	err = a.call(ctx)
	return err
}
