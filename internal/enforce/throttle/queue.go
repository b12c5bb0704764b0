// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"container/heap"
	"sync"
	"sync/atomic"

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

// Options bound the queues. The zero Options are the defaults.
type Options struct {
	WaitersMax int // the bound for all queues together; 0 means 131,072
}

// Queues are the throttle queues of one node. Queues are safe for concurrent use.
type Queues struct {
	options Options
	waiting atomic.Int64 // the number of queued tickets, so that Busy takes no lock while there are none

	mu      sync.Mutex
	byKey   map[string]*queue
	came    uint64              // number of tickets so far
	sources [sourceCounts]int32 // tickets by source
}

// queue holds the tickets that wait for one counter. A queue is a heap, because a ticket that moves
// from another queue is placed by its arrival, and queues can be long.
type queue struct {
	key     string
	tickets []*Ticket
}

// Ticket is a waiting request, in one queue at a time. A Ticket's methods are safe for concurrent
// use.
type Ticket struct {
	queues *Queues
	turn   chan struct{}
	came   uint64 // arrival number
	source uint32
	queue  *queue // nil after the ticket has left
	at     int    // index in the queue's heap
}

// Place names a queue and its bound.
type Place struct {
	Key []byte // the key of the counter; it is not retained
	Max int    // the greatest number of tickets in the queue, including this one
	// Source identifies where the request comes from, as in counter.Check; 0 if unknown.
	Source uint32
}

// New returns empty queues.
func New(o Options) *Queues {
	if o.WaitersMax <= 0 {
		o.WaitersMax = waitersMaxDefault
	}
	return &Queues{options: o, byKey: make(map[string]*queue)}
}

// Waiting returns the number of tickets in all queues.
func (l *Queues) Waiting() int { return int(l.waiting.Load()) }

// Busy reports whether a ticket waits for the counter. Busy does not allocate.
func (l *Queues) Busy(key []byte) bool {
	if l.waiting.Load() == 0 {
		return false
	}
	l.mu.Lock()
	_, busy := l.byKey[string(key)]
	l.mu.Unlock()
	return busy
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
	t.enter(p.Key)
	return t
}

// Queues.hasRoom reports whether the queue has room for another ticket.
func (l *Queues) hasRoom(p Place) bool {
	length := 0
	if known := l.byKey[string(p.Key)]; known != nil {
		length = len(known.tickets)
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

// Turn returns a channel that receives a value when the ticket has become the first of its queue.
// An older ticket may move ahead of it afterwards, so call Behind before taking units.
func (t *Ticket) Turn() <-chan struct{} { return t.turn }

// Behind returns the index of the first of the given queues in which an older ticket waits, or -1.
func (t *Ticket) Behind(places []Place) int {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	for i := range places {
		if in := t.queues.byKey[string(places[i].Key)]; in != nil && in.tickets[0].came < t.came {
			return i
		}
	}
	return -1
}

// Move moves the ticket to a queue, which may be its own, ahead of all younger tickets. The
// ticket's turn is then signaled again. If that queue is full, Move returns false and does nothing.
func (t *Ticket) Move(p Place) bool {
	t.queues.mu.Lock()
	defer t.queues.mu.Unlock()
	switch {
	case t.queue.key == string(p.Key):
		if t.at == 0 {
			t.queue.signal()
		}
		return true
	case !t.queues.hasRoom(p):
		return false
	}
	t.exit()
	t.enter(p.Key)
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

// Ticket.enter puts the ticket into a queue, which is created if no ticket waits for that counter.
func (t *Ticket) enter(key []byte) {
	t.queue = t.queues.byKey[string(key)]
	if t.queue == nil {
		t.queue = &queue{key: string(key)}
		t.queues.byKey[t.queue.key] = t.queue
	}
	heap.Push(t.queue, t)
	if t.at == 0 {
		t.queue.signal()
	}
}

// Ticket.exit removes the ticket from its queue and signals the turn of the first remaining ticket.
func (t *Ticket) exit() {
	in, first := t.queue, t.at == 0
	heap.Remove(in, t.at)
	t.queue = nil
	if len(in.tickets) == 0 {
		delete(t.queues.byKey, in.key)
	} else if first {
		in.signal()
	}
}

// queue.signal signals to the first ticket that its turn has come, even if it was signaled before.
func (l *queue) signal() {
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
