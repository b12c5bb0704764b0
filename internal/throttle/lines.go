// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"container/heap"
	"sync"
	"sync/atomic"
)

// waitersMaxDefault is the bound of [New]'s default. A waiting request holds a goroutine, its buffers and a connection, some
// 20 KB: more of them than this would be an attack on the node's memory. One counter may have a line of 100,000.
const waitersMaxDefault = 1 << 17

// Options bound what Lines hold. The zero Options are the defaults.
type Options struct {
	WaitersMax int // in all lines together; 0 means 131,072
}

// Lines are the lines of one node. They are safe for concurrent use.
type Lines struct {
	options Options
	waiting atomic.Int64 // tickets in line, so that asking about no line at all takes no lock

	mu    sync.Mutex
	lines map[string]*line
	came  uint64 // tickets until now
}

// line is the tickets that wait for one counter: a heap, since one that comes from another line has its place by when it
// came first, and lines may be long.
type line struct {
	key     string
	tickets []*Ticket
}

// Ticket is somebody who waits, in one line at a time. Its methods are safe for concurrent use.
type Ticket struct {
	lines *Lines
	turn  chan struct{}
	came  uint64 // the number of those that came until then, this one included
	line  *line  // nil after it has left
	at    int    // where it is in the line's heap
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

// Join goes to the end of a line. It returns nil, and stands nowhere, if the line is as long as it may be, or if there are
// too many waiters. Whoever joined must leave.
func (l *Lines) Join(p Place) *Ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(l.waiting.Load()) >= l.options.WaitersMax || !l.room(p) {
		return nil
	}
	l.came++
	t := &Ticket{lines: l, turn: make(chan struct{}, 1), came: l.came}
	l.waiting.Add(1)
	t.enter(p.Key)
	return t
}

// room reports whether one more may stand in the line.
func (l *Lines) room(p Place) bool {
	length := 0
	if known := l.lines[string(p.Key)]; known != nil {
		length = len(known.tickets)
	}
	return length < p.Max
}

// Turn is told when the ticket has become the first of its line. It may be overtaken afterwards, by one that came before it
// and stood elsewhere: whoever means to take something asks Behind.
func (t *Ticket) Turn() <-chan struct{} { return t.turn }

// Behind returns the number of the first of these lines in which somebody stands who came before, or -1.
func (t *Ticket) Behind(places []Place) int {
	t.lines.mu.Lock()
	defer t.lines.mu.Unlock()
	for i := range places {
		if in := t.lines.lines[string(places[i].Key)]; in != nil && in.tickets[0].came < t.came {
			return i
		}
	}
	return -1
}

// Move has the ticket stand in another line, ahead of all that came later, or where it stands; its turn is told anew. It
// reports false, and has done nothing, if that line is as long as it may be.
func (t *Ticket) Move(p Place) bool {
	t.lines.mu.Lock()
	defer t.lines.mu.Unlock()
	switch {
	case t.line.key == string(p.Key):
		if t.at == 0 {
			t.line.tell()
		}
		return true
	case !t.lines.room(p):
		return false
	}
	t.exit()
	t.enter(p.Key)
	return true
}

// Leave frees the ticket's place. A second time does nothing.
func (t *Ticket) Leave() {
	t.lines.mu.Lock()
	defer t.lines.mu.Unlock()
	if t.line != nil {
		t.exit()
		t.lines.waiting.Add(-1)
	}
}

// enter takes the ticket's place in a line, a new one if nobody waits for that counter.
func (t *Ticket) enter(key []byte) {
	t.line = t.lines.lines[string(key)]
	if t.line == nil {
		t.line = &line{key: string(key)}
		t.lines.lines[t.line.key] = t.line
	}
	heap.Push(t.line, t)
	if t.at == 0 {
		t.line.tell()
	}
}

// exit gives up the ticket's place. Whoever is the first then has its turn.
func (t *Ticket) exit() {
	in, first := t.line, t.at == 0
	heap.Remove(in, t.at)
	t.line = nil
	if len(in.tickets) == 0 {
		delete(t.lines.lines, in.key)
	} else if first {
		in.tell()
	}
}

// tell tells the first ticket that it is its turn. It may have been told before.
func (l *line) tell() {
	select {
	case l.tickets[0].turn <- struct{}{}:
	default:
	}
}

var _ heap.Interface = (*line)(nil)

func (l *line) Len() int           { return len(l.tickets) }
func (l *line) Less(i, j int) bool { return l.tickets[i].came < l.tickets[j].came }

func (l *line) Swap(i, j int) {
	l.tickets[i], l.tickets[j] = l.tickets[j], l.tickets[i]
	l.tickets[i].at, l.tickets[j].at = i, j
}

func (l *line) Push(t any) {
	ticket := t.(*Ticket)
	ticket.at = len(l.tickets)
	l.tickets = append(l.tickets, ticket)
}

func (l *line) Pop() any {
	last := len(l.tickets) - 1
	ticket := l.tickets[last]
	l.tickets[last] = nil
	l.tickets = l.tickets[:last]
	return ticket
}
