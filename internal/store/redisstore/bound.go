// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"fmt"
)

// Bounds of the replies to one write. go-redis allocates the memory that a reply announces before
// the data has arrived, and recurses into nested arrays. A server that announces 2,000,000,000
// bytes would therefore make this process allocate them. The longest reply that the store needs is
// CLUSTER SLOTS: with 16,384 separate slots, three replicas each and host names of 60 bytes, it has
// 11 MB, 510,000 elements and four levels.
const (
	// repliesBytesMax and repliesElementsMax bound all replies together.
	repliesBytesMax    = 16 << 20
	repliesElementsMax = 1 << 20
	// replyStringMax bounds a string whose length is announced, and replyLineMax a string that ends
	// with its line. replyArrayMax bounds the elements of an array, and replyDepthMax the nesting
	// of arrays.
	replyStringMax = 1 << 20
	replyLineMax   = 64 << 10
	replyArrayMax  = 64 << 10
	replyDepthMax  = 8
)

// bound parses the replies of a connection and detects the first that exceeds a limit. The zero
// value of bound is at the start of a reply. A bound does not store any data.
type bound struct {
	total    int // the number of bytes read and announced since reset
	elements int

	kind   byte // the type of the current line; 0 at the beginning of a reply or an element
	line   int  // length of the line so far
	number int  // the part of the announced number read so far
	minus  bool
	ended  bool                 // whether the number has ended
	rest   int                  // the bytes left of a string, including its line end
	depth  int                  // number of open arrays
	lacks  [replyDepthMax]int32 // the number of elements that each open array still needs

	err error // the first error; it is permanent
}

// bound.reset restarts the counts, because a new request was sent.
func (b *bound) reset() { b.total, b.elements = 0, 0 }

// bound.see parses the next bytes. After an error none of these bytes may be used.
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

// bound.begin starts a line. Only RESP2 types are valid, because the client selects RESP2.
func (b *bound) begin(kind byte) {
	switch kind {
	case '+', '-', ':', '$', '*':
		b.kind, b.line, b.number, b.minus, b.ended = kind, 0, 0, false, false
		b.count(1)
	default:
		b.fail("it begins with %q", kind)
	}
}

// inLine parses part of a line and returns the bytes after it.
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

// bound.announce parses the number in a line.
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

// bound.finish ends a line. Announced data counts before it arrives.
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

// bound.value ends a value, and each array that the value completes.
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
	b.err = fmt.Errorf("redis sent an invalid reply: "+format, a)
}
