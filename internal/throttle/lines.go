// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"sync"
	"sync/atomic"
)

// The bounds of [New]'s defaults. A waiting request holds a goroutine, its buffers and a connection, some 20 KB: more of
// them than this would be an attack on the node's memory. One counter may have a line of 100,000.
const (
	waitersMaxDefault = 1 << 17
	linesMaxDefault   = 1 << 17
)

// Options bound what Lines hold. The zero Options are the defaults.
type Options struct {
	WaitersMax int // in all lines together; 0 means 131,072
	LinesMax   int // lines with somebody in them; 0 means 131,072
}

// Lines are the lines of one node. They are safe for concurrent use.
type Lines struct {
	options Options
	waiting atomic.Int64 // tickets in line, so that asking about no line at all takes no lock

	mu    sync.Mutex
	lines map[string]*line
}

// line is the tickets that wait for one counter, the first of them at the head.
type line struct {
	key         string
	first, last *entry
	length      int
}

// entry is a ticket's place in a line.
type entry struct {
	line       *line
	ticket     *Ticket
	prev, next *entry
}

// Ticket is somebody who waits. Its methods are safe for concurrent use.
type Ticket struct {
	lines   *Lines
	turn    chan struct{}
	entries []entry
	behind  int // lines in which somebody is ahead
	left    bool
}

// Place is a line to stand in.
type Place struct {
	Key []byte // of the counter; it belongs to the caller and may change afterwards
	Max int    // how many may stand in the line, this one included
}

// New returns lines without anybody in them.
func New(o Options) *Lines {
	if o.WaitersMax <= 0 {
		o.WaitersMax = waitersMaxDefault
	}
	if o.LinesMax <= 0 {
		o.LinesMax = linesMaxDefault
	}
	return &Lines{options: o, lines: make(map[string]*line)}
}

// Waiting returns how many stand in line.
func (l *Lines) Waiting() int { return int(l.waiting.Load()) }

// Busy reports whether somebody waits for the counter. It does not allocate.
func (l *Lines) Busy(key []byte) bool {
	if l.waiting.Load() == 0 {
		return false
	}
	l.mu.Lock()
	_, busy := l.lines[string(key)]
	l.mu.Unlock()
	return busy
}

// Join goes to the end of every one of the lines, in one step. It returns nil, and stands nowhere, if one of them is as
// long as it may be, or if there are too many lines or waiters. A line that is named twice is joined once. Without a
// place the turn comes at once. Whoever joined must leave.
func (l *Lines) Join(places []Place) *Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(l.waiting.Load()) >= l.options.WaitersMax || !l.room(places) {
		return nil
	}
	t := &Ticket{lines: l, turn: make(chan struct{}), entries: make([]entry, 0, len(places))}
	for i := range places {
		if named(places[:i], places[i].Key) {
			continue
		}
		t.entries = append(t.entries, entry{line: l.line(places[i].Key), ticket: t})
		t.entries[len(t.entries)-1].append()
	}
	l.waiting.Add(1)
	if t.behind == 0 {
		close(t.turn)
	}
	return t
}

// room reports whether every line has a place.
func (l *Lines) room(places []Place) bool {
	made := 0
	for i := range places {
		known := l.lines[string(places[i].Key)]
		switch {
		case known == nil && places[i].Max < 1, known != nil && known.length >= places[i].Max:
			return false
		case known == nil:
			made++
		}
	}
	return len(l.lines)+made <= l.options.LinesMax
}

func named(places []Place, key []byte) bool {
	for i := range places {
		if string(places[i].Key) == string(key) {
			return true
		}
	}
	return false
}

// line returns the counter's line, a new one if nobody waits for it.
func (l *Lines) line(key []byte) *line {
	known := l.lines[string(key)]
	if known == nil {
		known = &line{key: string(key)}
		l.lines[known.key] = known
	}
	return known
}

// append puts the entry at the end of its line.
func (e *entry) append() {
	in := e.line
	in.length++
	e.prev = in.last
	in.last = e
	if e.prev == nil {
		in.first = e
		return
	}
	e.prev.next = e
	e.ticket.behind++
}

// remove takes the entry out of its line. Whoever is the first in it then may have its turn.
func (e *entry) remove() {
	in := e.line
	in.length--
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		in.last = e.prev
	}
	if e.prev != nil {
		e.prev.next = e.next
		return
	}
	in.first = e.next
	if next := e.next; next != nil {
		if next.ticket.behind--; next.ticket.behind == 0 {
			close(next.ticket.turn)
		}
	}
}

// Turn is closed when the ticket is the first in every line it stands in; from then on it is so until it leaves.
func (t *Ticket) Turn() <-chan struct{} { return t.turn }

// Leave frees the ticket's places. A second time does nothing.
func (t *Ticket) Leave() {
	l := t.lines
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.left {
		return
	}
	t.left = true
	for i := range t.entries {
		e := &t.entries[i]
		e.remove()
		if e.line.length == 0 {
			delete(l.lines, e.line.key)
		}
	}
	l.waiting.Add(-1)
}
