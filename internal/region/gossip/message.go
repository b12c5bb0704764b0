// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// Bounds of a message.
const (
	pageMax        = 4 * readMax                   // counters
	pageBytesMax   = 1 << 20                       // the bytes of all their names; a single name may be longer
	nameBytesMax   = regionstore.KeyBytesMax + 256 // of a name: the key, and the limit
	regionBytesMax = 64
	messageMax     = pageBytesMax + 2*nameBytesMax + pageMax*40
)

// version begins each message.
const version = 1

// Told is what a region reports about one counter: the units that the region itself has counted.
type Told struct {
	Name         string         // the text of a [regionstore.Changed]
	Start        counter.Micros // the start of the window
	Used, Before int64          // the region's own units in the window, and in the previous one
}

// message is a report of one region to another region.
type message struct {
	from     string
	counters []Told
}

var errMessage = errors.New("the message is cut off, or out of bounds")

// message.encode sorts the counters, and returns the message as bytes. For each name, the message
// contains only the part that differs from the previous name.
func (m *message) encode() []byte {
	slices.SortFunc(m.counters, func(a, b Told) int { return strings.Compare(a.Name, b.Name) })
	b := append([]byte{version}, byte(len(m.from)))
	b = append(b, m.from...)
	b = binary.AppendUvarint(b, uint64(len(m.counters)))
	var last Told
	for _, t := range m.counters {
		same := 0
		for same < min(len(t.Name), len(last.Name)) && t.Name[same] == last.Name[same] {
			same++
		}
		b = binary.AppendUvarint(b, uint64(same))
		b = binary.AppendUvarint(b, uint64(len(t.Name)-same))
		b = append(b, t.Name[same:]...)
		b = binary.AppendVarint(b, int64(t.Start-last.Start))
		b = binary.AppendUvarint(b, uint64(t.Used))
		b = binary.AppendUvarint(b, uint64(t.Before))
		last = t
	}
	return b
}

// decode reads a message. It checks every bound, because the message may come from anyone.
func decode(b []byte) (m message, err error) {
	r := reader{rest: b}
	if got := r.byte(); got != version {
		return m, fmt.Errorf("the message has the version %d, and this agent reads version %d: update the older agent of the two", got, version)
	}
	m.from = string(r.bytes(uint64(r.byte()), regionBytesMax))
	n := r.number()
	if n > pageMax {
		return m, errMessage
	}
	var last Told
	for range n {
		same := r.number()
		if same > uint64(len(last.Name)) {
			return m, errMessage
		}
		t := Told{Name: last.Name[:same] + string(r.bytes(r.number(), nameBytesMax-same))}
		t.Start = last.Start + counter.Micros(r.signed())
		t.Used, t.Before = int64(min(r.number(), uint64(counter.CountMax))), int64(min(r.number(), uint64(counter.CountMax)))
		if r.bad || t.Start < 1 || t.Start > startMax {
			return m, errMessage
		}
		m.counters = append(m.counters, t)
		last = t
	}
	if r.bad || len(r.rest) > 0 {
		return m, errMessage
	}
	return m, nil
}

// startMax is the latest start of a window, which a script must represent exactly.
const startMax = 1 << 53

// reader reads the parts of a message.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.bad = true
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *reader) bytes(n, atMost uint64) []byte {
	if r.bad || n > atMost || n > uint64(len(r.rest)) {
		r.bad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) number() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

func (r *reader) signed() int64 {
	n, size := binary.Varint(r.rest)
	if size <= 0 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}
