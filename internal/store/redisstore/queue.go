// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
)

// sourceQueues is the number of queues for sources. Several sources can share one.
const sourceQueues = 1024

// queue holds the calls that wait for a lane. Each source has its own queue, and the queues are
// served in turn. So a client that makes thousands of calls at once delays almost only its own
// calls. For each of its own calls, another client waits for at most one of these calls. A queue is
// safe for concurrent use.
type queue struct {
	max     int
	waiting atomic.Int64
	ready   chan struct{} // signals the dispatchers

	mu       sync.Mutex
	queues   [sourceQueues]sourceQueue
	nonEmpty [sourceQueues / 64]uint64 // a bit for each queue that is not empty
	next     int                       // index of the queue to serve next
}

// sourceQueue is the calls of one source, in order of arrival. Calls that are sent together count
// as one.
type sourceQueue struct {
	first, last *call
	count       int
}

// sourceOf returns the source of a call, from its first check: the client if the check has a
// source, otherwise the counter's slot.
func sourceOf(c *counter.Check) uint32 {
	if c.Source != 0 {
		return sources.Number(c.Source)
	}
	return uint32(slotOf(c.Key))
}

func newQueue(most, dispatchers int) *queue {
	return &queue{max: most, ready: make(chan struct{}, dispatchers)}
}

// queue.len returns the number of waiting calls.
func (q *queue) len() int { return int(q.waiting.Load()) }

// queue.push appends a call to the queue of its source. If the whole queue is full, the longest
// source queue makes room: push removes and returns its oldest call. If no source queue is longer
// than that of the new call, the method returns the new call.
func (q *queue) push(c *call) (rejected *call) {
	q.mu.Lock()
	own := int(c.source % sourceQueues)
	if int(q.waiting.Load()) >= q.max {
		longest := q.longest()
		if q.queues[longest].count <= q.queues[own].count {
			q.mu.Unlock()
			return c
		}
		rejected = q.pop(longest)
	}
	l := &q.queues[own]
	if c.behind = nil; l.last == nil {
		l.first = c
	} else {
		l.last.behind = c
	}
	l.last = c
	l.count++
	q.nonEmpty[own/64] |= 1 << (own % 64)
	q.waiting.Add(1)
	q.mu.Unlock()
	q.signal()
	return rejected
}

// queue.signal wakes a dispatcher.
func (q *queue) signal() {
	select {
	case q.ready <- struct{}{}:
	default: // every dispatcher is already signaled
	}
}

// queue.take appends waiting calls to dst, one of each source in turn. It stops at the given number
// of calls, named most, or when the calls together have the given number of checks.
func (q *queue) take(dst []*call, most, checks int) []*call {
	if q.waiting.Load() == 0 {
		return dst
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for range most {
		at := q.nextNonEmpty()
		if at < 0 || checks <= 0 {
			break
		}
		q.next = (at + 1) % sourceQueues
		c := q.pop(at)
		dst = append(dst, c)
		for ; c != nil; c = c.next {
			checks -= c.checks
		}
	}
	return dst
}

// nextNonEmpty returns the index of the first queue that is not empty, beginning with the queue to
// serve next, or -1.
func (q *queue) nextNonEmpty() int {
	word := q.next / 64
	left := q.nonEmpty[word] &^ (1<<(q.next%64) - 1)
	for range len(q.nonEmpty) + 1 {
		if left != 0 {
			return word*64 + bits.TrailingZeros64(left)
		}
		word = (word + 1) % len(q.nonEmpty)
		left = q.nonEmpty[word]
	}
	return -1
}

// queue.pop removes the first call of a source.
func (q *queue) pop(at int) *call {
	l := &q.queues[at]
	c := l.first
	l.first, c.behind = c.behind, nil
	if l.count--; l.first == nil {
		l.last = nil
		q.nonEmpty[at/64] &^= 1 << (at % 64)
	}
	q.waiting.Add(-1)
	return c
}

func (q *queue) longest() (at int) {
	for i := range q.queues {
		if q.queues[i].count > q.queues[at].count {
			at = i
		}
	}
	return at
}
