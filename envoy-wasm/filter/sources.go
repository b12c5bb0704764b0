// SPDX-License-Identifier: Apache-2.0

package filter

// The addresses of clients take turns in the queue for the next call, so that a client with
// thousands of requests in the queue delays only its own requests. A request of another client is
// part of the next call. One client also gets at most half of the places in the queues.

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
	// key is random and odd. Without it, a client with many addresses could choose an address that
	// shares a count with a certain other client.
	key    uint32
	turn   int64 // the turn of the last request that went into a call
	queued int   // the number of requests in all queues, including requests that have ended there
	each   [sourcesMax]sourceState
}

// sourceState holds the state of the requests from one client address: see core.Plan.Source.
type sourceState struct {
	turn   int64 // the turn of its last request
	queued int
	held   int // bytes of headers
}

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

// takeTurn puts the request into the queue for the next calls: behind the earlier requests of its
// source, and behind at most as many of any other source.
func (s *Stream) takeTurn() {
	c := &s.f.calls
	s.addToCount(1)
	from := &c.sources.each[s.source]
	from.turn = max(from.turn, c.sources.turn) + 1
	s.turn = from.turn
	at, end := 0, len(c.waiting)
	for at < end {
		if middle := (at + end) / 2; c.waiting[middle].turn > s.turn {
			end = middle
		} else {
			at = middle + 1
		}
	}
	c.waiting = append(c.waiting, nil)
	copy(c.waiting[at+1:], c.waiting[at:])
	c.waiting[at] = s
}

// cutWaiting removes requests from the front of the queue for the next calls.
func (c *calls) cutWaiting(n int) {
	for _, s := range c.waiting[:n] {
		s.addToCount(-1)
		c.sources.turn = s.turn
	}
	rest := copy(c.waiting, c.waiting[n:])
	clear(c.waiting[rest:])
	c.waiting = c.waiting[:rest]
}
