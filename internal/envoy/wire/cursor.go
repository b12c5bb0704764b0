// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/penstock/penstock/core/slim"
)

// cursor reads a text from front to back. After the first value that cannot be read, every value is
// zero.
type cursor struct {
	_ slim.Incomparable

	rest   string
	failed bool
}

// open checks the head and returns a cursor positioned after it. The result named leases reports
// whether the content can contain lease fields.
func open(data []byte, head string, bytesMax int) (c cursor, leases bool, err error) {
	if len(data) > bytesMax {
		return c, false, errTooLong
	}
	rest, ok := strings.CutPrefix(string(data), head)
	if !ok || rest == "" || rest[0] != plain && rest[0] != leasing {
		return c, false, ErrMalformed
	}
	return cursor{rest: rest[1:]}, rest[0] == leasing, nil
}

//go:noinline
func (c *cursor) fail() { c.failed, c.rest = true, "" }

func (c *cursor) err() error {
	if c.failed {
		return ErrMalformed
	}
	return nil
}

//go:noinline
func (c *cursor) byte() (b byte) {
	if c.rest == "" {
		c.fail()
		return 0
	}
	b, c.rest = c.rest[0], c.rest[1:]
	return b
}

// cursor.int reads a number that [appendInt] wrote.
//
//go:noinline
func (c *cursor) int() int64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b := c.byte()
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return int64(n>>1) ^ -int64(n&1)
		}
	}
	c.fail()
	return 0
}

// cursor.count reads a number of entries, which must not exceed the maximum or the bytes left.
func (c *cursor) count(most int) int {
	n := c.int()
	if n < 0 || n > int64(most) || n > int64(len(c.rest)) {
		c.fail()
		return 0
	}
	return int(n)
}

//go:noinline
func (c *cursor) text() (text string) {
	n := c.count(len(c.rest))
	text, c.rest = c.rest[:n], c.rest[n:]
	return text
}

// cursor.fixed reads a number of eight bytes.
func (c *cursor) fixed() (n uint64) {
	if len(c.rest) < 8 {
		c.fail()
		return 0
	}
	for i := range 8 {
		n = n<<8 | uint64(c.rest[i])
	}
	c.rest = c.rest[8:]
	return n
}

func (c *cursor) addr() netip.Addr {
	text := c.text()
	var addr netip.Addr
	if len(text) > 16 || addr.UnmarshalBinary([]byte(text)) != nil { // a longer text is an address with a zone
		c.fail()
	}
	return addr
}

func (c *cursor) values(values []Value) []Value {
	for n := c.count(ValuesMax); n > 0 && !c.failed; n-- {
		switch c.byte() {
		case 0:
			values = append(values, Value{})
		case 1:
			values = append(values, Value{Text: c.text(), Given: true})
		default:
			c.fail()
		}
	}
	return values
}

func (c *cursor) fields(fields []Field) []Field {
	for n := c.count(ValuesMax); n > 0 && !c.failed; n-- {
		fields = append(fields, Field{Name: c.text(), Text: c.text()})
	}
	return fields
}

// appendInt and the functions below that are marked noinline must not be inlined, because that
// would add 15 KB to the filter.
//
//go:noinline
func appendInt(dst []byte, n int64) []byte { return binary.AppendVarint(dst, n) }

func appendFixed(dst []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(dst, n) }

//go:noinline
func appendText(dst []byte, text string) []byte {
	return append(appendInt(dst, int64(len(text))), text...)
}

// appendAddr appends an address without its zone, which has no meaning on another machine.
func appendAddr(dst []byte, addr netip.Addr) []byte {
	all := addr.As16()
	b := all[:]
	switch {
	case addr.Is4():
		b = all[12:] // after the prefix of mapped addresses
	case !addr.IsValid():
		b = nil
	}
	return append(append(dst, byte(2*len(b))), b...) // the length as appendInt writes it
}

func appendValues(dst []byte, values []Value) []byte {
	dst = appendInt(dst, int64(len(values)))
	for _, v := range values {
		if v.Given {
			dst = appendText(append(dst, 1), v.Text)
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}

func appendFields(dst []byte, fields []Field) []byte {
	dst = appendInt(dst, int64(len(fields)))
	for _, f := range fields {
		dst = appendText(appendText(dst, f.Name), f.Text)
	}
	return dst
}
