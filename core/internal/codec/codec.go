// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/penstock/penstock/core/counter"
)

// Coder encodes or decodes the compact form. The same code visits the values in both directions, so
// each field is named only once and the two directions agree. Numbers are varints. A text or list
// is preceded by its length.
type Coder struct {
	Data    []byte // the output, or the input that remains to be decoded
	Reading bool
	Unread  bool // the form includes CostAfter.Unread
	Broken  bool // the input is not in compact form; values after the error remain unchanged
}

// ErrMalformed reports data that is not in compact form or is damaged.
var ErrMalformed = errors.New("not a policy in its compact form, or damaged")

// Fail marks the input as broken.
//
//go:noinline
func (c *Coder) Fail() { c.Broken, c.Data = true, nil }

// Number encodes or decodes an integer of any type.
func Number[T ~int | ~int32 | ~int64 | ~uint8](c *Coder, v *T) {
	n := c.number(int64(*v))
	if int64(T(n)) != n {
		c.Fail()
		return
	}
	*v = T(n)
}

// Coder.number encodes n and returns it, or decodes and returns a number (n if that fails).
//
//go:noinline
func (c *Coder) number(n int64) int64 {
	if !c.Reading {
		c.Data = binary.AppendVarint(c.Data, n)
		return n
	}
	read, length := binary.Varint(c.Data)
	if length <= 0 {
		c.Fail()
		return n
	}
	c.Data = c.Data[length:]
	return read
}

// Flag encodes or decodes a boolean.
func (c *Coder) Flag(v *bool) {
	var n int
	if *v {
		n = 1
	}
	Number(c, &n)
	if *v = n == 1; n>>1 != 0 {
		c.Fail()
	}
}

// Text encodes or decodes a text.
func (c *Coder) Text(v *string) {
	n := len(*v)
	Number(c, &n)
	switch {
	case !c.Reading:
		c.Data = append(c.Data, *v...)
	case n < 0 || n > len(c.Data):
		c.Fail()
	default:
		*v, c.Data = string(c.Data[:n]), c.Data[n:]
	}
}

// List encodes or decodes a list. The decoded list grows entry by entry, so a wrong length by
// itself does not cause a large allocation.
func List[T any](c *Coder, v *[]T, entry func(*Coder, *T)) {
	for n, i := c.length(len(*v)), 0; i < n && !c.Broken; i++ {
		if c.Reading {
			*v = append(*v, *new(T))
		}
		entry(c, &(*v)[i])
	}
}

// Coder.length encodes the length n of a list and returns n. When decoding, it returns the length
// that it reads.
func (c *Coder) length(n int) int {
	if Number(c, &n); c.Reading && (n < 0 || n > len(c.Data)) {
		c.Fail()
		return 0
	}
	return n
}

// Optional encodes or decodes the value of a pointer, which may be nil.
func Optional[T any](c *Coder, v **T, what func(*Coder, *T)) {
	given := *v != nil
	c.Flag(&given)
	if !given {
		return
	}
	if c.Reading {
		*v = new(T)
	}
	what(c, *v)
}

// Words encodes or decodes a list of texts.
func Words(c *Coder, v *[]string) { List(c, v, (*Coder).Text) }

// Coder.prefix encodes or decodes an address range in the form of [netip.Prefix.MarshalBinary]: the
// bytes of the address and the number of bits. The library's functions also handle zones, which a
// range does not have, and add 10 KB to a filter.
func (c *Coder) prefix(v *netip.Prefix) {
	var text string
	if !c.Reading {
		text = string(append(v.Addr().AsSlice(), byte(v.Bits())))
	}
	c.Text(&text)
	if !c.Reading {
		return
	}
	last := len(text) - 1
	addr, ok := netip.Addr{}, last == 0
	if last > 0 {
		addr, ok = netip.AddrFromSlice([]byte(text[:last]))
	}
	if !ok {
		c.Fail()
		return
	}
	*v = netip.PrefixFrom(addr, int(text[last]))
}

// Ranges encodes or decodes a list of address ranges.
func Ranges(c *Coder, v *[]netip.Prefix) { List(c, v, (*Coder).prefix) }

// Limit encodes or decodes a limit's defining fields. The derived fields are recomputed.
func (c *Coder) Limit(l *counter.Limit) {
	algorithm, calendar, count, burst, window := l.Algorithm(), l.Calendar(), l.Count(), l.Capacity(), l.Window()
	if algorithm != counter.TokenBucket {
		burst = 0
	}
	Number(c, &algorithm)
	Number(c, &calendar)
	Number(c, &count)
	Number(c, &burst)
	Number(c, &window)
	if !c.Reading || c.Broken {
		return
	}
	var err error
	if calendar != 0 {
		*l, err = counter.NewCalendarLimit(count, calendar)
	} else {
		*l, err = counter.NewLimit(algorithm, count, window, burst)
	}
	if err != nil {
		c.Fail()
	}
}
