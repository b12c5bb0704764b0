// SPDX-License-Identifier: Apache-2.0

package leasestore

// turns is the queue of a gate. Each source has its own line, and the lines are served in turn. So
// a client with thousands of requests at a counter that all clients share delays almost only its
// own requests. For each of its own requests, another client waits for at most one of these
// requests.
//
// The zero turns is an empty queue.
type turns struct {
	lines       map[uint32]*line // by source: see [counter.Check]
	first, last *line            // the lines in the order of their turns
	spare       *line            // an unused line, so that short queues allocate nothing
	waiting     int
	grown       bool // whether the map has held more than linesKept lines
}

// linesKept bounds the map of an empty queue: a map that has held more lines is dropped.
const linesKept = 64

// line is the requests of one source, in the order of arrival.
type line struct {
	source      uint32
	first, last *queued
	next        *line
}

// turns.push puts a request at the end of the line of its source.
func (t *turns) push(q *queued) {
	t.waiting++
	q.next = nil
	if l := t.lines[q.checks[q.check].Source]; l != nil {
		l.last.next = q
		l.last = q
		return
	}
	l := t.spare
	if l == nil {
		l = new(line)
	}
	t.spare = nil
	l.source, l.first, l.last = q.checks[q.check].Source, q, q
	t.add(l)
}

// turns.add puts a line at the end of the order.
func (t *turns) add(l *line) {
	if t.lines == nil {
		t.lines = make(map[uint32]*line)
	}
	t.lines[l.source] = l
	t.grown = t.grown || len(t.lines) > linesKept
	t.rotate(l)
}

// turns.rotate puts a line at the end of the order. The line must not be in the order yet.
func (t *turns) rotate(l *line) {
	l.next = nil
	if t.first == nil {
		t.first = l
	} else {
		t.last.next = l
	}
	t.last = l
}

// turns.peek returns the request whose turn it is, or nil if none waits.
func (t *turns) peek() *queued {
	if t.first == nil {
		return nil
	}
	return t.first.first
}

// turns.pop removes and returns the request whose turn it is, or nil if none waits. The next turn
// is that of the next source.
func (t *turns) pop() *queued {
	l := t.first
	if l == nil {
		return nil
	}
	q := l.first
	t.waiting--
	t.first, l.first, q.next = l.next, q.next, nil
	if l.first != nil {
		t.rotate(l)
	} else {
		t.free(l)
	}
	return q
}

// turns.free drops an empty line that is no longer in the order.
func (t *turns) free(l *line) {
	delete(t.lines, l.source)
	*l = line{}
	t.spare = l
	if t.first != nil {
		return
	}
	t.last = nil
	if t.grown {
		t.lines, t.grown = nil, false
	}
}

// turns.remove removes a request. The method returns false if the request does not wait here.
func (t *turns) remove(q *queued) bool {
	l := t.lines[q.checks[q.check].Source]
	if l == nil {
		return false
	}
	var before *queued
	for at := l.first; at != q; before, at = at, at.next {
		if at == nil {
			return false
		}
	}
	if before == nil {
		l.first = q.next
	} else {
		before.next = q.next
	}
	if l.last == q {
		l.last = before
	}
	t.waiting--
	if l.first == nil {
		t.cut(l)
		t.free(l)
	}
	return true
}

// turns.cut removes a line from the order.
func (t *turns) cut(l *line) {
	var before *line
	for at := t.first; at != l; at = at.next {
		before = at
	}
	if before == nil {
		t.first = l.next
	} else {
		before.next = l.next
	}
	if t.last == l {
		t.last = before
	}
}

// turns.prepend puts the requests of an earlier queue ahead of those of this queue. The earlier
// queue must not be used afterwards.
func (t *turns) prepend(earlier turns) {
	if earlier.first == nil {
		return
	}
	later := *t
	*t = earlier
	t.waiting += later.waiting
	for l := later.first; l != nil; {
		next := l.next
		if own := t.lines[l.source]; own != nil {
			own.last.next, own.last = l.first, l.last
		} else {
			t.add(l)
		}
		l = next
	}
}
