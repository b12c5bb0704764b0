// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"encoding/binary"

	"github.com/penstock/penstock/core/counter"
)

// An arena keeps records in pages without pointers, which the garbage collector does not scan. A
// record is
//
//	at 0   State.At, State.Used, State.Aux    8 bytes each, little endian
//	at 24  the instant at which it is fresh   8 bytes
//	at 32  flags and the key's length         2 bytes; 0: the record is free
//	at 34  the key
//
// All records of a page have the same size. The memory of an empty page is freed, and its number is
// reused for a page of any record size. So clients that change the length of their keys do not make
// the store grow.
type arena struct {
	// the memory of the pages; nil for vacant pages. The memory is separate from the descriptions
	// of the pages, so that a lookup in a large store reads few cache lines.
	data  []*[pageBytes]byte
	pages []page
	// for each size class, one plus the number of the first page with a free record, or 0 if there
	// is none.
	roomy [classCount]uint32
	// the numbers of the pages without memory.
	vacant []uint32
	// the position of the next record to examine for removal, as in the CLOCK algorithm.
	hand position
}

// position is a position in an arena: the number of a page, and an offset in the page.
type position struct{ page, offset uint32 }

// page describes 4 KiB of records of one size.
type page struct {
	// links of the list of pages with room in the class: page number plus one, 0 for none
	prev, next uint32
	size       uint16 // bytes per record
	live       uint16 // records in use
	used       uint16 // offset of the first record that was never written
	free       uint16 // offset plus one of the first freed record, 0 for none
}

// ref identifies a record by the number of its page and its offset there, in units of 8 bytes.
type ref uint32

const (
	// a page has room for 56 counters with keys of 36 bytes; a shard wastes less than a page per
	// key length
	pageBytes  = 4096
	offsetBits = 9 // an offset in a page, in units of 8 bytes
	pagesMax   = 1 << (32 - offsetBits)

	freshOffset = 24
	metaOffset  = 32
	keyOffset   = 34

	metaLive   = 1 << 15
	metaLog    = 1 << 14 // Aux is the number under which table.logs holds the marks of a sliding log
	metaRecord = 1 << 13 // Aux is the number under which table.records holds the violations of a penalty
	metaExtra  = 1 << 12 // units might be leased, or charges might be refunded
	metaSide   = metaLog | metaRecord | metaExtra
	metaLength = metaExtra - 1

	// fineBytes is the record size up to which every multiple of 8 bytes is a size class. Above it,
	// there is one class for each number of records per page, which wastes at most an eighth of a
	// page.
	fineBytes   = 256
	fineClasses = fineBytes/8 + 1
	classCount  = fineClasses + pageBytes/fineBytes
)

// KeyMax is the maximum length of a key in bytes. A longer key is an error that wraps
// [counter.ErrInvalid]. Both the key's record and that of its overflow counter must fit into a
// page.
const KeyMax = pageBytes - keyOffset - overflowSuffix

// class returns the size class of records with keys of the given length, and the size of such
// records.
func class(keyLength int) (class int, size uint16) {
	need := (keyOffset + keyLength + 7) &^ 7
	if need <= fineBytes {
		return need / 8, uint16(need)
	}
	perPage := pageBytes / need
	return fineClasses + perPage, uint16(pageBytes/perPage) &^ 7
}

// arena.bytes returns the bytes from the record to the end of its page.
func (a *arena) bytes(r ref) []byte {
	return a.data[r>>offsetBits][uint(r)<<3&(pageBytes-1):]
}

// addRecord creates a record with the key and the zero State, which is always fresh. It fails if no
// page number is left.
func (a *arena) addRecord(key []byte) (ref, bool) {
	c, size := class(len(key))
	if a.roomy[c] == 0 && !a.open(c, size) {
		return 0, false
	}
	number := a.roomy[c] - 1
	p := &a.pages[number]
	offset := p.used
	if p.free != 0 {
		offset = p.free - 1
		p.free = binary.LittleEndian.Uint16(a.data[number][offset:])
	} else {
		p.used += size
	}
	p.live++
	if p.free == 0 && p.used+size > pageBytes {
		a.unlink(c, number)
	}
	r := ref(number<<offsetBits | uint32(offset)>>3)
	b := a.bytes(r)
	clear(b[:metaOffset])
	binary.LittleEndian.PutUint16(b[metaOffset:], metaLive|uint16(len(key)))
	copy(b[keyOffset:], key)
	return r, true
}

// arena.open adds an empty page to the size class. It fails if no page number is left.
func (a *arena) open(c int, size uint16) bool {
	if len(a.vacant) == 0 {
		if len(a.pages) == pagesMax {
			return false
		}
		a.pages, a.data = append(a.pages, page{}), append(a.data, nil)
		a.vacant = append(a.vacant, uint32(len(a.pages)-1))
	}
	last := len(a.vacant) - 1
	number := a.vacant[last]
	a.vacant = a.vacant[:last]
	a.pages[number], a.data[number] = page{size: size}, new([pageBytes]byte)
	if a.hand.page == number { // the hand's offset is invalid for the new record size
		a.hand.offset = 0
	}
	a.link(c, number)
	return true
}

// arena.remove frees a record and reports whether this also freed its page.
func (a *arena) remove(r ref) (emptied bool) {
	number, offset := uint32(r>>offsetBits), uint16(r<<3)&(pageBytes-1)
	p := &a.pages[number]
	b := a.data[number][offset:]
	c, _ := class(int(binary.LittleEndian.Uint16(b[metaOffset:]) & metaLength))
	if p.free == 0 && p.used+p.size > pageBytes {
		a.link(c, number)
	}
	binary.LittleEndian.PutUint16(b, p.free)
	binary.LittleEndian.PutUint16(b[metaOffset:], 0)
	p.free = offset + 1
	p.live--
	// If the page is the only one with room, it is kept. Otherwise a counter that is created and
	// removed repeatedly would allocate a page each time.
	if p.live == 0 && (p.next != 0 || p.prev != 0) {
		a.unlink(c, number)
		*p, a.data[number] = page{}, nil
		a.vacant = append(a.vacant, number)
		return true
	}
	return false
}

// arena.link inserts a page at the head of its class's list of pages with room.
func (a *arena) link(c int, number uint32) {
	p := &a.pages[number]
	p.prev, p.next = 0, a.roomy[c]
	if p.next != 0 {
		a.pages[p.next-1].prev = number + 1
	}
	a.roomy[c] = number + 1
}

// arena.unlink removes a page from its class's list of pages with room.
func (a *arena) unlink(c int, number uint32) {
	p := &a.pages[number]
	if p.next != 0 {
		a.pages[p.next-1].prev = p.prev
	}
	if p.prev != 0 {
		a.pages[p.prev-1].next = p.next
	} else {
		a.roomy[c] = p.next
	}
	p.prev, p.next = 0, 0
}

// arena.advance moves the hand by one record and returns the record that it passed. It returns
// false if that record is free, or if the hand moved to the next page.
func (a *arena) advance() (ref, bool) {
	h := a.hand
	if int(h.page) >= len(a.pages) {
		a.hand = position{}
		return 0, false
	}
	p := &a.pages[h.page]
	if h.offset >= uint32(p.used) {
		a.hand = position{page: h.page + 1}
		return 0, false
	}
	a.hand.offset += uint32(p.size)
	r := ref(h.page<<offsetBits | h.offset>>3)
	return r, binary.LittleEndian.Uint16(a.bytes(r)[metaOffset:]) != 0
}

// arena.key returns the record's key. The key is valid until the record is removed.
func (a *arena) key(r ref) []byte {
	b := a.bytes(r)
	n := int(binary.LittleEndian.Uint16(b[metaOffset:]) & metaLength)
	return b[keyOffset : keyOffset+n]
}

// hasKey reports whether the record has the key.
func (a *arena) hasKey(r ref, key []byte) bool { return string(a.key(r)) == string(key) }

// freshAt returns the instant at which the record becomes fresh.
func (a *arena) freshAt(r ref) counter.Micros {
	return counter.Micros(binary.LittleEndian.Uint64(a.bytes(r)[freshOffset:]))
}

// arena.state sets At, Used and Aux of s from the record, and returns the kind of its data outside
// the arena, or 0 if there is none. For metaLog and metaRecord, Aux is the number under which the
// table holds that data.
func (a *arena) state(r ref, s *counter.State) (side uint16) {
	b := a.bytes(r)
	_ = b[keyOffset]
	s.At = counter.Micros(binary.LittleEndian.Uint64(b))
	s.Used = int64(binary.LittleEndian.Uint64(b[8:]))
	s.Aux = int64(binary.LittleEndian.Uint64(b[16:]))
	return binary.LittleEndian.Uint16(b[metaOffset:]) & metaSide
}

// arena.side returns the record's Aux, and the kind of its data outside the arena.
func (a *arena) side(r ref) (aux int64, side uint16) {
	b := a.bytes(r)
	_ = b[keyOffset]
	return int64(binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint16(b[metaOffset:]) & metaSide
}

// setState writes At and Used of s to the record, with the given Aux, the instant at which the
// record is fresh, and the kind of its data outside the arena.
func (a *arena) setState(r ref, s *counter.State, aux int64, fresh counter.Micros, side uint16) {
	b := a.bytes(r)
	_ = b[keyOffset]
	binary.LittleEndian.PutUint64(b, uint64(s.At))
	binary.LittleEndian.PutUint64(b[8:], uint64(s.Used))
	binary.LittleEndian.PutUint64(b[16:], uint64(aux))
	binary.LittleEndian.PutUint64(b[freshOffset:], uint64(fresh))
	meta := binary.LittleEndian.Uint16(b[metaOffset:]) &^ metaSide
	binary.LittleEndian.PutUint16(b[metaOffset:], meta|side)
}
