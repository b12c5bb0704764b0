// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"fmt"
)

// What is read of the replies to one write, at most. go-redis allocates what a reply announces before it has come, and calls
// itself for an array in an array, so a server that announces 2,000,000,000 bytes would take them from this process. The
// longest reply that is needed is CLUSTER SLOTS: with each of the 16,384 slots apart, and three replicas of each with host
// names of 60 bytes, it has 11 MB, 510,000 elements and four levels.
const (
	// repliesBytesMax and repliesElementsMax bound all that is read.
	repliesBytesMax    = 16 << 20
	repliesElementsMax = 1 << 20
	// replyStringMax bounds a string whose length is announced, replyLineMax one that ends with its line, replyArrayMax the
	// elements of an array and replyDepthMax how many arrays are in one another.
	replyStringMax = 1 << 20
	replyLineMax   = 64 << 10
	replyArrayMax  = 64 << 10
	replyDepthMax  = 8
)

// bound follows the replies of a connection and finds the first that goes beyond what is read. The zero bound is at the
// beginning of a reply. It keeps nothing of what it sees.
type bound struct {
	total    int // bytes, read and announced since reset
	elements int

	kind   byte // of the line under way; 0: a reply or an element begins
	line   int  // bytes of it
	number int  // that it announces, as far as it was read
	minus  bool
	ended  bool // the number has ended
	rest   int  // bytes that are still to come of a string, with its line end
	depth  int  // arrays under way, and how many elements each lacks
	lacks  [replyDepthMax]int32

	err error // what was found; it stays
}

// reset begins to count anew: something was asked.
func (b *bound) reset() { b.total, b.elements = 0, 0 }

// see follows the next bytes. An error says what is wrong with them; none of them may be used then.
func (b *bound) see(p []byte) error {
	for len(p) > 0 && b.err == nil {
		switch {
		case b.rest > 0:
			n := min(b.rest, len(p))
			p = p[n:]
			if b.rest -= n; b.rest == 0 {
				b.value()
			}
		case b.kind == 0:
			b.begin(p[0])
			p = p[1:]
		default:
			p = b.inLine(p)
		}
	}
	return b.err
}

// begin begins a line. Only what RESP2 has may come, which is what is asked for.
func (b *bound) begin(kind byte) {
	switch kind {
	case '+', '-', ':', '$', '*':
		b.kind, b.line, b.number, b.minus, b.ended = kind, 0, 0, false, false
		b.count(1)
	default:
		b.fail("it begins with %q", kind)
	}
}

// inLine follows a line, and returns what is behind it.
func (b *bound) inLine(p []byte) []byte {
	text, rest := p, []byte(nil)
	end := bytes.IndexByte(p, '\n')
	if end >= 0 {
		text, rest = p[:end], p[end+1:]
	}
	if b.line += len(text); b.line > replyLineMax {
		b.fail("a line has more than %d bytes", replyLineMax)
		return nil
	}
	b.count(len(text))
	if b.kind == '$' || b.kind == '*' {
		b.announce(text)
	}
	if end >= 0 && b.err == nil {
		b.finish()
	}
	return rest
}

// announce reads the number of a line.
func (b *bound) announce(text []byte) {
	for _, c := range text {
		digit := c - '0'
		switch {
		case b.ended:
			b.fail("%q is behind a number", c)
		case c == '\r':
			b.ended = true
		case c == '-' && b.number == 0 && !b.minus:
			b.minus = true
		case digit > 9:
			b.fail("%q is in a number", c)
		default:
			b.number = b.number*10 + int(digit)
		}
		switch {
		case b.err != nil:
		case b.kind == '$' && b.number > replyStringMax:
			b.fail("it announces a string of more than %d bytes", replyStringMax)
		case b.kind == '*' && b.number > replyArrayMax:
			b.fail("it announces more than %d elements", replyArrayMax)
		}
		if b.err != nil {
			return
		}
	}
}

// finish ends a line. What it announces counts before it has come.
func (b *bound) finish() {
	kind := b.kind
	b.kind = 0
	switch {
	case kind == '$' && !b.minus:
		b.rest = b.number + 2
		b.count(b.rest)
	case kind == '*' && !b.minus && b.number > 0:
		if b.depth == replyDepthMax {
			b.fail("more than %d arrays are in one another", replyDepthMax)
			return
		}
		b.lacks[b.depth] = int32(b.number)
		b.depth++
		if b.elements += b.number; b.elements > repliesElementsMax {
			b.fail("it has more than %d elements", repliesElementsMax)
		}
	default:
		b.value()
	}
}

// value ends a value, and each array that it is the last of.
func (b *bound) value() {
	for ; b.depth > 0; b.depth-- {
		if b.lacks[b.depth-1]--; b.lacks[b.depth-1] > 0 {
			return
		}
	}
}

func (b *bound) count(n int) {
	if b.total += n; b.total > repliesBytesMax {
		b.fail("it has more than %d bytes", repliesBytesMax)
	}
}

func (b *bound) fail(format string, a any) {
	if b.err != nil {
		return
	}
	b.err = fmt.Errorf("redis answers what is not read: "+format, a)
}
