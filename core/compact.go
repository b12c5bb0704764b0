// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// coder writes the compact form or reads it. The walk over the values is the same for both, so what one writes the other
// reads: a field is named once. Numbers are varints, texts and lists have their length before them.
type coder struct {
	data    []byte // what was written, or what remains to be read
	reading bool
	unread  bool // the form has CostAfter.Unread
	broken  bool // what was read is not the compact form: everything after it is left as it is
}

var errCompact = errors.New("not a policy in its compact form, or damaged")

//go:noinline
func (c *coder) fail() { c.broken, c.data = true, nil }

// number codes an integer of any type.
func number[T ~int | ~int32 | ~int64 | ~uint8](c *coder, v *T) {
	if !c.reading {
		c.data = binary.AppendVarint(c.data, int64(*v))
		return
	}
	n, length := binary.Varint(c.data)
	if length <= 0 || int64(T(n)) != n {
		c.fail()
		return
	}
	*v, c.data = T(n), c.data[length:]
}

func (c *coder) flag(v *bool) {
	var n int
	if *v {
		n = 1
	}
	number(c, &n)
	if *v = n == 1; n>>1 != 0 {
		c.fail()
	}
}

func (c *coder) text(v *string) {
	n := len(*v)
	number(c, &n)
	switch {
	case !c.reading:
		c.data = append(c.data, *v...)
	case n < 0 || n > len(c.data):
		c.fail()
	default:
		*v, c.data = string(c.data[:n]), c.data[n:]
	}
}

// list codes the entries of a list. Reading, it grows with the entries that are there: a length alone makes nobody allocate.
func list[T any](c *coder, v *[]T, entry func(*coder, *T)) {
	for n, i := c.length(len(*v)), 0; i < n && !c.broken; i++ {
		if c.reading {
			*v = append(*v, *new(T))
		}
		entry(c, &(*v)[i])
	}
}

// length codes how long a list is, which is empty when it is read.
func (c *coder) length(n int) int {
	if number(c, &n); c.reading && (n < 0 || n > len(c.data)) {
		c.fail()
		return 0
	}
	return n
}

// optional codes what a pointer points to, if it is not nil.
func optional[T any](c *coder, v **T, what func(*coder, *T)) {
	given := *v != nil
	c.flag(&given)
	if !given {
		return
	}
	if c.reading {
		*v = new(T)
	}
	what(c, *v)
}

func words(c *coder, v *[]string) { list(c, v, (*coder).text) }

func (c *coder) prefix(v *netip.Prefix) {
	var text string
	if !c.reading {
		b, _ := v.MarshalBinary() // never fails
		text = string(b)
	}
	c.text(&text)
	if c.reading && v.UnmarshalBinary([]byte(text)) != nil {
		c.fail()
	}
}

func ranges(c *coder, v *[]netip.Prefix) { list(c, v, (*coder).prefix) }

// limit codes what a limit is made of: the rest of its numbers follows.
func (c *coder) limit(l *Limit) {
	given := *l
	if given.algorithm != TokenBucket {
		given.burst = 0
	}
	number(c, &given.algorithm)
	number(c, &given.calendar)
	number(c, &given.count)
	number(c, &given.burst)
	number(c, &given.window)
	if !c.reading || c.broken {
		return
	}
	var err error
	if given.calendar != 0 {
		*l, err = NewCalendarLimit(given.count, given.calendar)
	} else {
		*l, err = NewLimit(given.algorithm, given.count, given.window, given.burst)
	}
	if err != nil {
		c.fail()
	}
}
