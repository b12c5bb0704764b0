// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
)

// waitersMaxDefault is the default total of waiting requests. A waiting request holds a goroutine,
// its buffers and a connection, about 20 KB, so more requests would endanger the node's memory. The
// queue of one counter can have 100,000.
const waitersMaxDefault = 1 << 17

// At most the fraction 1/sourcePart of WaitersMax may be requests of one source. Otherwise a client
// with a few counters could fill all queues, and requests of other clients would be denied instead
// of delayed. A bridge sets WaitersMax to 16,384 by default, so a source can have 2,048 waiting
// requests there. These leave room in the queue of a filter, too, which holds up to 4,096. There
// are sourceCounts counts, which the sources share.
const (
	sourcePart   = 8
	sourceCounts = 1024
)

// callsMax bounds the calls to the store of one queue that are under way at the same time. The gate
// of a counter lets as many calls through (package leasestore). With a smaller bound, a queue would
// drain more slowly than requests pass when nobody waits.
const callsMax = 256

// Options bound the queues. The zero Options are the defaults.
type Options struct {
	WaitersMax int // the bound for all queues together; 0 means 131,072
}

// Queues are the throttle queues of one node. Queues are safe for concurrent use.
type Queues struct {
	options Options
	waiting atomic.Int64 // the number of queued tickets, so that Busy takes no lock while there are none

	mu      sync.Mutex
	queues  map[queueName]*queue
	came    uint64              // number of tickets so far
	sources [sourceCounts]int32 // tickets by source
}

// queueName identifies a queue. Clients of several tiers can share a counter and have different
// limits. If they shared a queue, a request whose limit is used up would delay requests that have
// room.
type queueName struct {
	key   string // the key of the counter
	limit counter.Limit
}

// queue holds the tickets that wait for one limit of one counter. The tickets that do not ask the
// store are a heap, because a ticket that moves from another queue is placed by its arrival, and
// queues can be long.
type queue struct {
	name    queueName
	tickets []*Ticket
	asking  []*Ticket // the tickets whose calls to the store are under way, in any order
	asked   int64     // the units that the tickets in asking ask for
	left    int64     // units left according to the store's last answer, 0 before the first answer
}

// Ticket is a waiting request, in one queue at a time. A Ticket's methods are safe for concurrent
// use.
type Ticket struct {
	queues *Queues
	turn   chan struct{}
	came   uint64 // arrival number
	source uint32
	queue  *queue // nil after the ticket has left
	cost   int64  // the units that the ticket needs of the queue's counter
	asks   bool   // the ticket is in asking
	at     int    // index in the queue's heap, or in asking
}

// Place names a queue and its bound.
type Place struct {
	Key   []byte        // the key of the counter; it is not retained
	Limit counter.Limit // the limit that the ticket waits for
	Max   int           // the greatest number of tickets in the queue, including this one
	// Cost is the number of units that the ticket needs of the counter.
	Cost int64
	// Left is the number of units that the counter has left according to the ticket's last answer.
	Left int64
	// Source identifies where the request comes from, as in counter.Check; 0 if unknown.
	Source uint32
}

// New returns empty queues.
func New(o Options) *Queues {
	if o.WaitersMax <= 0 {
		o.WaitersMax = waitersMaxDefault
	}
	return &Queues{options: o, queues: make(map[queueName]*queue)}
}

// Waiting returns the number of tickets in all queues.
func (l *Queues) Waiting() int { return int(l.waiting.Load()) }

// Busy reports whether a request has to queue for a limit of a counter. A request does not have to
// queue if every ticket of the queue asks the store and the known units suffice for all these
// tickets and the request. These units are then set aside until the next answer. Busy does not
// allocate.
func (l *Queues) Busy(key []byte, limit *counter.Limit, cost int64) bool {
	if l.waiting.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.queues[queueName{string(key), *limit}]
	if in == nil {
		return false
	}
	if len(in.tickets) > 0 || cost > in.left-in.asked {
		return true
	}
	in.left -= cost
	return false
}

// Join adds a ticket to the end of a queue. Join returns nil if the queue is full, or if too many
// tickets wait in total. The caller must call Leave.
func (l *Queues) Join(p Place) *Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(l.waiting.Load()) >= l.options.WaitersMax || !l.hasRoom(p) || l.crowded(p.Source) {
		return nil
	}
	l.came++
	*l.sourceCount(p.Source)++
	t := &Ticket{queues: l, turn: make(chan struct{}, 1), came: l.came, source: p.Source}
	l.waiting.Add(1)
	t.enter(p)
	return t
}

// Queues.queueAt returns the queue of a place, or nil if no ticket waits there. The caller holds
// the lock.
func (l *Queues) queueAt(p *Place) *queue { return l.queues[queueName{string(p.Key), p.Limit}] }

// Queues.hasRoom reports whether the queue has room for another ticket.
func (l *Queues) hasRoom(p Place) bool {
	length := 0
	if known := l.queueAt(&p); known != nil {
		length = known.length()
	}
	return length < p.Max
}

// Queues.crowded reports whether no more requests of a source may wait. A request without an
// address counts only towards WaitersMax.
func (l *Queues) crowded(source uint32) bool {
	return source != 0 && int(*l.sourceCount(source)) >= max(1, l.options.WaitersMax/sourcePart)
}

// Queues.sourceCount returns the number of tickets of a source. The caller holds the lock.
func (l *Queues) sourceCount(source uint32) *int32 {
	return &l.sources[sources.Number(source)%sourceCounts]
}

// Turn returns a channel that receives a value when the ticket has become the first of its queue
// and may ask the store. An older ticket may move ahead of it afterwards, so call Ask before taking
// units.
func (t *Ticket) Turn() <-chan struct{} { return t.turn }

// Ask returns -1 if the ticket may ask the store now. Until the ticket leaves or moves, it is then
// no longer ahead of any other ticket. If the known units suffice for the next ticket in its queue
// too, Ask signals to that ticket that its turn has come.
//
// If the ticket may not ask the store now, Ask returns the index of the first of the given queues
// in which the ticket has to wait: an older ticket waits there, or the tickets that ask there may
// take all units that are known to be left. Tickets that ask count only if they are older or in the
// ticket's own queue, so the oldest ticket is never sent to another queue.
func (t *Ticket) Ask(places []Place) int {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	if next := t.behind(places); next >= 0 {
		return next
	}
	for i := range places {
		in := t.queues.queueAt(&places[i])
		if in != nil && !in.covers(places[i].Cost) && (in == t.queue || in.olderAsks(t)) {
			return i
		}
	}
	heap.Remove(t.queue, t.at)
	t.queue.startCall(t)
	t.queue.signal()
	return -1
}

// Answered tells the queues how many units their counters have left, which decides how many of
// their tickets may ask the store at the same time.
func (t *Ticket) Answered(places []Place) {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	for i := range places {
		if in := t.queues.queueAt(&places[i]); in != nil {
			in.left = places[i].Left
			in.signal()
		}
	}
}

// Ticket.behind returns the index of the first of the given queues in which an older ticket waits
// that does not ask the store, or -1. The caller holds the lock.
func (t *Ticket) behind(places []Place) int {
	for i := range places {
		in := t.queues.queueAt(&places[i])
		if in != nil && len(in.tickets) > 0 && in.tickets[0].came < t.came {
			return i
		}
	}
	return -1
}

// Move moves the ticket to a queue, which may be its own, ahead of all younger tickets that do not
// ask the store. The ticket's turn is then signaled again. If that queue is full, Move returns
// false and does nothing.
func (t *Ticket) Move(p Place) bool {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	there := t.queues.queueAt(&p)
	switch {
	case t.queue == there && !t.asks:
		if t.at == 0 {
			t.queue.signal()
		}
		return true
	case t.queue != there && !t.queues.hasRoom(p):
		return false
	}
	t.exit()
	t.enter(p)
	return true
}

// Leave removes the ticket from its queue. A second call does nothing.
func (t *Ticket) Leave() {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	if t.queue != nil {
		t.exit()
		*t.queues.sourceCount(t.source)--
		t.queues.waiting.Add(-1)
	}
}

// Ticket.enter puts the ticket into a queue, which is created if no ticket waits there.
func (t *Ticket) enter(p Place) {
	t.queue, t.cost = t.queues.queueAt(&p), p.Cost
	if t.queue == nil {
		t.queue = &queue{name: queueName{string(p.Key), p.Limit}, left: p.Left}
		t.queues.queues[t.queue.name] = t.queue
	}
	heap.Push(t.queue, t)
	if t.at == 0 {
		t.queue.signal()
	}
}

// Ticket.exit removes the ticket from its queue and signals the turn of the first remaining ticket.
func (t *Ticket) exit() {
	in, first := t.queue, t.asks || t.at == 0
	if t.asks {
		in.endCall(t)
	} else {
		heap.Remove(in, t.at)
	}
	t.queue = nil
	if in.length() == 0 {
		delete(t.queues.queues, in.name)
	} else if first {
		in.signal()
	}
}

// queue.length returns the number of tickets, with those that ask the store.
func (l *queue) length() int { return len(l.tickets) + len(l.asking) }

// queue.covers reports whether a ticket may ask the store for units while others do. One ticket may
// always ask, because only an answer of the store shows how many units are left.
func (l *queue) covers(cost int64) bool {
	calls := len(l.asking)
	return calls == 0 || calls < callsMax && cost <= l.left-l.asked
}

// queue.olderAsks reports whether a ticket that is older than the given one asks the store.
func (l *queue) olderAsks(t *Ticket) bool {
	return slices.ContainsFunc(l.asking, func(other *Ticket) bool { return other.came < t.came })
}

// queue.startCall adds a ticket to those that ask the store.
func (l *queue) startCall(t *Ticket) {
	t.asks, t.at = true, len(l.asking)
	l.asking = append(l.asking, t)
	l.asked += t.cost
}

// queue.endCall removes a ticket from those that ask the store.
func (l *queue) endCall(t *Ticket) {
	last := len(l.asking) - 1
	l.asking[t.at] = l.asking[last]
	l.asking[t.at].at = t.at
	l.asking[last] = nil
	l.asking = l.asking[:last]
	l.asked -= t.cost
	t.asks = false
}

// queue.signal signals to the first ticket that its turn has come, even if it was signaled before.
// It does nothing while that ticket may not ask the store.
func (l *queue) signal() {
	if len(l.tickets) == 0 || !l.covers(l.tickets[0].cost) {
		return
	}
	select {
	case l.tickets[0].turn <- struct{}{}:
	default:
	}
}

var _ heap.Interface = (*queue)(nil)

func (l *queue) Len() int           { return len(l.tickets) }
func (l *queue) Less(i, j int) bool { return l.tickets[i].came < l.tickets[j].came }

func (l *queue) Swap(i, j int) {
	l.tickets[i], l.tickets[j] = l.tickets[j], l.tickets[i]
	l.tickets[i].at, l.tickets[j].at = i, j
}

func (l *queue) Push(t any) {
	ticket := t.(*Ticket)
	ticket.at = len(l.tickets)
	l.tickets = append(l.tickets, ticket)
}

func (l *queue) Pop() any {
	last := len(l.tickets) - 1
	ticket := l.tickets[last]
	l.tickets[last] = nil
	l.tickets = l.tickets[:last]
	return ticket
}
