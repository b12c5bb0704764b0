// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/core"
)

// sources is how many lines a queue has. Each source of calls has one of them; a few may have the same one.
const sources = 256

// queue holds the calls that wait for a lane. Each source has a line of its own, and the lines take turns, so that the calls
// of a client that makes thousands at once wait for one another, and those of other clients for one of them each. Safe for
// concurrent use.
type queue struct {
	max     int
	waiting atomic.Int64
	wake    chan struct{} // holds what wakes the dispatchers

	mu    sync.Mutex
	lines [sources]line
	some  [sources / 64]uint64 // a bit for each line that is not empty
	turn  int                  // of the line whose turn it is
}

// line is the calls of one source, in the order in which they came. What is to be sent together is one of them.
type line struct {
	first, last *call
	count       int
}

// sourceOf returns whose call one with this first check is: the client's, as far as its address says, or else the counter's.
func sourceOf(c *core.Check) uint32 {
	if c.Source != 0 {
		return c.Source >> 1 // the lowest bit only says that there is one
	}
	return uint32(slotOf(c.Key))
}

func newQueue(most, dispatchers int) *queue {
	return &queue{max: most, wake: make(chan struct{}, dispatchers)}
}

// len returns how many calls wait.
func (q *queue) len() int { return int(q.waiting.Load()) }

// push puts a call at the end of its source's line. When the queue is full, the longest line makes room: the call that has
// waited longest there is returned, or the new one if none is longer than its own.
func (q *queue) push(c *call) (refused *call) {
	q.mu.Lock()
	own := int(c.source % sources)
	if int(q.waiting.Load()) >= q.max {
		longest := q.longest()
		if q.lines[longest].count <= q.lines[own].count {
			q.mu.Unlock()
			return c
		}
		refused = q.pop(longest)
	}
	l := &q.lines[own]
	if c.behind = nil; l.last == nil {
		l.first = c
	} else {
		l.last.behind = c
	}
	l.last = c
	l.count++
	q.some[own/64] |= 1 << (own % 64)
	q.waiting.Add(1)
	q.mu.Unlock()
	q.signal()
	return refused
}

// signal wakes a dispatcher.
func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // as many are woken as there are
	}
}

// take appends the first calls to dst, most at most, one of each line in turn.
func (q *queue) take(dst []*call, most int) []*call {
	if q.waiting.Load() == 0 {
		return dst
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for range most {
		at := q.next()
		if at < 0 {
			break
		}
		q.turn = (at + 1) % sources
		dst = append(dst, q.pop(at))
	}
	return dst
}

// next returns the first line from the turn on that is not empty, -1 if all are.
func (q *queue) next() int {
	word := q.turn / 64
	left := q.some[word] &^ (1<<(q.turn%64) - 1)
	for range len(q.some) + 1 {
		if left != 0 {
			return word*64 + bits.TrailingZeros64(left)
		}
		word = (word + 1) % len(q.some)
		left = q.some[word]
	}
	return -1
}

// pop takes out the first call of a line.
func (q *queue) pop(at int) *call {
	l := &q.lines[at]
	c := l.first
	l.first, c.behind = c.behind, nil
	if l.count--; l.first == nil {
		l.last = nil
		q.some[at/64] &^= 1 << (at % 64)
	}
	q.waiting.Add(-1)
	return c
}

func (q *queue) longest() (at int) {
	for i := range q.lines {
		if q.lines[i].count > q.lines[at].count {
			at = i
		}
	}
	return at
}
