// SPDX-License-Identifier: Apache-2.0

package filter

import "github.com/penstock/penstock/core/slim"

// The addresses of clients take turns in the queue for the next call, so that a client with
// thousands of requests in the queue delays only its own requests. A request of another client is
// part of the next call. One client also gets at most half of the places in the queues. Settlements
// have a queue of their own, in which the addresses take turns, too.

const (
	// sourcesMax is the number of counts of sources. Several sources can share a count.
	sourcesMax  = 1 << sourcesBits
	sourcesBits = 10
	// sourceMax is the maximum number of requests of one source in the queues. Further requests are
	// denied with 503.
	sourceMax = waitingMax / 2
	// sourceBytesMax is the maximum number of bytes of headers that waiting requests of one source
	// hold.
	sourceBytesMax = heldBytesMax / 2
)

// sources holds the origins of the requests in the queues of one worker.
type sources struct {
	_ slim.Incomparable

	// key is random and odd. Without it, a client with many addresses could choose an address that
	// shares a count with a certain other client.
	key    uint32
	turns  turns // of the requests in the queue for the next calls
	queued int   // the number of requests in all queues, including requests that have ended there
	each   [sourcesMax]sourceState
}

// sourceState holds the state of the requests from one client address: see core.Plan.Source.
type sourceState struct {
	queued int
	held   int // bytes of headers
}

// turns holds the turns of the sources in one queue.
type turns struct {
	_    slim.Incomparable
	now  int64             // the turn of the last item that went into a call
	each [sourcesMax]int64 // by source: the turn of its last item
}

// place is the place of an item in a queue in which the sources take turns.
type place struct {
	_      slim.Incomparable
	source uint16 // index of its source in sources
	turn   int64  // the queue is in the order of the turns
}

// placeOf returns the place itself, so that takeTurn can read the place of each kind of item.
func (p *place) placeOf() *place { return p }

// indexOf returns the index of a source: see core.Plan.Source.
func (l *sources) indexOf(source uint32) uint16 { return uint16(source * l.key >> (32 - sourcesBits)) }

// sourceFull reports whether the source of the request has used up its part of the queues.
func (s *Stream) sourceFull() bool {
	from := &s.f.calls.sources.each[s.source]
	return from.queued >= sourceMax || from.held+s.asking.attrs.Bytes > sourceBytesMax
}

// holdForSource sets the number of bytes that the request adds to the bytes that its
// source holds.
//
//go:noinline
func (s *Stream) holdForSource(bytes int) {
	a := s.asking
	s.f.calls.sources.each[s.source].held += bytes - a.sourced
	a.sourced = bytes
}

// addToCount adds n to the number of requests in the queues.
//
//go:noinline
func (s *Stream) addToCount(n int) {
	l := &s.f.calls.sources
	l.queued += n
	l.each[s.source].queued += n
}

// takeTurn puts an item into a queue: behind the earlier items of its source, and behind at most as
// many of any other source.
//
//go:noinline
func takeTurn[Item interface{ placeOf() *place }](t *turns, queue []Item, item Item) []Item {
	p := item.placeOf()
	from := &t.each[p.source]
	*from = max(*from, t.now) + 1
	p.turn = *from
	at, end := 0, len(queue)
	for at < end {
		if middle := (at + end) / 2; queue[middle].placeOf().turn > p.turn {
			end = middle
		} else {
			at = middle + 1
		}
	}
	queue = append(queue, item)
	copy(queue[at+1:], queue[at:])
	queue[at] = item
	return queue
}

// cutWaiting removes requests from the front of the queue for the next calls.
func (c *calls) cutWaiting(n int) {
	for _, s := range c.waiting[:n] {
		s.addToCount(-1)
		c.sources.turns.now = s.turn
	}
	rest := copy(c.waiting, c.waiting[n:])
	clear(c.waiting[rest:])
	c.waiting = c.waiting[:rest]
}
