// SPDX-License-Identifier: Apache-2.0

package sources

import "slices"

// Lines are items that wait, in a line for each source. The sources take turns, and the items of
// one source are in the order of arrival. So a client with thousands of items hardly delays the
// items of others.
//
// The zero Lines are empty. Lines are not safe for concurrent use.
type Lines[T any] struct {
	lines       map[uint32]*line[T]
	first, last *line[T] // the lines in the order of their turns
	spare       *line[T] // an unused line, so that short queues allocate nothing
	waiting     int
	grown       bool // whether the map has held more than linesKept lines
}

// An empty queue keeps a map of up to linesKept lines, and a line with room for up to itemsKept
// items.
const (
	linesKept = 64
	itemsKept = 64
)

// line is the items of one source. The items before the index named head have been removed.
type line[T any] struct {
	source uint32
	items  []T
	head   int
	next   *line[T]
}

// Len returns the number of items.
func (l *Lines[T]) Len() int { return l.waiting }

// Of returns the number of items of a source.
func (l *Lines[T]) Of(source uint32) int {
	if own := l.lines[source]; own != nil {
		return len(own.items) - own.head
	}
	return 0
}

// Push adds an item at the end of the line of its source.
func (l *Lines[T]) Push(source uint32, item T) {
	own := l.lines[source]
	if own == nil {
		own = l.begin(source)
	}
	if own.head > 0 && len(own.items) == cap(own.items) {
		kept := copy(own.items, own.items[own.head:])
		clear(own.items[kept:])
		own.items, own.head = own.items[:kept], 0
	}
	own.items = append(own.items, item)
	l.waiting++
}

// Lines.begin adds an empty line, whose turn comes last.
func (l *Lines[T]) begin(source uint32) *line[T] {
	own := l.spare
	if own == nil {
		own = new(line[T])
	}
	l.spare, own.source = nil, source
	l.add(own)
	return own
}

// Lines.add adds a line, whose turn comes last.
func (l *Lines[T]) add(own *line[T]) {
	if l.lines == nil {
		l.lines = make(map[uint32]*line[T])
	}
	l.lines[own.source] = own
	l.grown = l.grown || len(l.lines) > linesKept
	l.append(own)
}

// Lines.append puts a line at the end of the order of turns.
func (l *Lines[T]) append(own *line[T]) {
	own.next = nil
	if l.first == nil {
		l.first = own
	} else {
		l.last.next = own
	}
	l.last = own
}

// Peek returns the item whose turn it is. The result ok is false if no item waits.
func (l *Lines[T]) Peek() (item T, ok bool) {
	if l.first == nil {
		return item, false
	}
	return l.first.items[l.first.head], true
}

// Pop removes and returns the item whose turn it is. The next turn is that of the next source. The
// result ok is false if no item waits.
func (l *Lines[T]) Pop() (item T, ok bool) {
	own := l.first
	if own == nil {
		return item, false
	}
	var zero T
	item, own.items[own.head] = own.items[own.head], zero
	own.head++
	l.first = own.next
	l.waiting--
	if own.head < len(own.items) {
		l.append(own)
	} else {
		l.end(own)
	}
	return item, true
}

// Remove removes the first item of a source for which is(item) is true. The result is false if the
// source has no such item. Remove takes time in proportion to the number of the source's items and
// of the lines.
func (l *Lines[T]) Remove(source uint32, is func(T) bool) bool {
	own := l.lines[source]
	if own == nil {
		return false
	}
	at := slices.IndexFunc(own.items[own.head:], is)
	if at < 0 {
		return false
	}
	own.items = slices.Delete(own.items, own.head+at, own.head+at+1)
	l.waiting--
	if own.head == len(own.items) {
		l.cut(own)
		l.end(own)
	}
	return true
}

// Lines.cut removes a line from the order of turns.
func (l *Lines[T]) cut(own *line[T]) {
	var before *line[T]
	for at := l.first; at != own; at = at.next {
		before = at
	}
	if before == nil {
		l.first = own.next
	} else {
		before.next = own.next
	}
	if l.last == own {
		l.last = before
	}
}

// Prepend puts the items of another Lines ahead of the items of l. The other Lines must not be used
// afterwards.
func (l *Lines[T]) Prepend(earlier Lines[T]) {
	if earlier.first == nil {
		return
	}
	later := *l
	*l = earlier
	l.waiting += later.waiting
	for own := later.first; own != nil; {
		next := own.next
		if known := l.lines[own.source]; known != nil {
			known.items = append(known.items, own.items[own.head:]...)
		} else {
			l.add(own)
		}
		own = next
	}
}

// Lines.end drops an empty line, which is no longer in the order of turns.
func (l *Lines[T]) end(own *line[T]) {
	delete(l.lines, own.source)
	if cap(own.items) <= itemsKept {
		*own = line[T]{items: own.items[:0]}
		l.spare = own
	}
	if l.first == nil {
		l.last = nil
		if l.grown {
			l.lines, l.grown = nil, false
		}
	}
}
