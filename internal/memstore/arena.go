// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"encoding/binary"

	"github.com/penstock/penstock/core"
)

// An arena keeps records in pages that hold no pointers, so that the garbage collector never looks at a counter. A
// record is
//
//	at 0   State.At, State.Used, State.Aux    8 bytes each, little endian
//	at 24  the instant from which it is fresh 8 bytes
//	at 32  flags and the key's length         2 bytes; 0: the record is free
//	at 34  the key
//
// Every page holds records of one size. A page whose records are all free goes back to the garbage collector and its
// number to a page of any size, so that clients who change the length of their keys do not make the store grow.
type arena struct {
	// data is the pages' memory, nil for vacant ones: apart from what else there is to know of pages, so that finding a
	// record of a large store reads few cache lines.
	data  []*[pageBytes]byte
	pages []page
	// roomy is, per size class, the first of the pages that have a free record: its number and one, 0 for none.
	roomy [classCount]uint32
	// vacant are the numbers of pages without memory.
	vacant []uint32
	// hand is where the next look for fresh records begins.
	hand position
}

// position is a place in an arena: a page's number and an offset in it.
type position struct{ page, offset uint32 }

// page is what there is to know of 4 KiB of records of one size.
type page struct {
	prev, next uint32 // in the list of roomy pages of the class; number and one
	size       uint16 // bytes per record
	live       uint16 // records in use
	used       uint16 // bytes in use from the start: the records behind were never written
	free       uint16 // first free record before used: its offset and one, 0 for none
}

// ref names a record: its page's number and its offset in it in units of 8 bytes.
type ref uint32

const (
	pageBytes  = 4096 // 56 counters with keys of 36 bytes; what a shard wastes per length of key is a part of this
	offsetBits = 9    // an offset in a page, in units of 8 bytes
	pagesMax   = 1 << (32 - offsetBits)

	freshOffset = 24
	metaOffset  = 32
	keyOffset   = 34

	metaLive   = 1 << 15
	metaLog    = 1 << 14 // Aux is the number of a sliding log's marks
	metaRecord = 1 << 13 // Aux is the number of a penalty's violations
	metaExtra  = 1 << 12 // units may be out on lease, or charges may come back
	metaSide   = metaLog | metaRecord | metaExtra
	metaLength = metaExtra - 1

	// fineBytes is up to which size there is a class for every multiple of 8 bytes; above it there is one for each
	// number of records that a page can hold, so that no page is wasted by more than an eighth.
	fineBytes   = 256
	fineClasses = fineBytes/8 + 1
	classCount  = fineClasses + pageBytes/fineBytes
)

// KeyMax is how many bytes a key may have. A longer one is refused with [core.ErrInvalid]: a record must fit its page,
// and so must the key of an overflow counter.
const KeyMax = pageBytes - keyOffset - overflowSuffix

// class returns the size class of a key's length and the size of its records.
func class(keyLength int) (class int, size uint16) {
	need := (keyOffset + keyLength + 7) &^ 7
	if need <= fineBytes {
		return need / 8, uint16(need)
	}
	perPage := pageBytes / need
	return fineClasses + perPage, uint16(pageBytes/perPage) &^ 7
}

// bytes returns the record and what follows it in its page.
func (a *arena) bytes(r ref) []byte {
	return a.data[r>>offsetBits][uint(r)<<3&(pageBytes-1):]
}

// add makes a record with the key and the zero State, fresh at any time. It fails when there is no page number left.
func (a *arena) add(key []byte) (ref, bool) {
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

// open gives the class a page with room.
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
	if a.hand.page == number { // it stopped between records of the size that the page had before
		a.hand.offset = 0
	}
	a.link(c, number)
	return true
}

// remove frees a record, and reports whether its page went with it.
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
	// The only page with room is kept, or one counter that comes and goes would open a page each time.
	if p.live == 0 && (p.next != 0 || p.prev != 0) {
		a.unlink(c, number)
		*p, a.data[number] = page{}, nil
		a.vacant = append(a.vacant, number)
		return true
	}
	return false
}

// link puts a page at the head of its class' roomy pages.
func (a *arena) link(c int, number uint32) {
	p := &a.pages[number]
	p.prev, p.next = 0, a.roomy[c]
	if p.next != 0 {
		a.pages[p.next-1].prev = number + 1
	}
	a.roomy[c] = number + 1
}

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

// advance moves the hand by one record and returns the one it was at, or false if it was free or the hand went on to
// the next page.
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

// key returns the record's key. It is valid until the record is removed.
func (a *arena) key(r ref) []byte {
	b := a.bytes(r)
	n := int(binary.LittleEndian.Uint16(b[metaOffset:]) & metaLength)
	return b[keyOffset : keyOffset+n]
}

// has says whether the record's key is key, every byte of it.
func (a *arena) has(r ref, key []byte) bool { return string(a.key(r)) == string(key) }

// freshAt returns the instant from which the record is equal to one never written.
func (a *arena) freshAt(r ref) core.Micros {
	return core.Micros(binary.LittleEndian.Uint64(a.bytes(r)[freshOffset:]))
}

// state reads the numbers of the record's state and returns what it has besides: metaLog or metaRecord, of which its Aux is
// the number, metaExtra, or 0 for nothing. The rest of the state is left as it is.
func (a *arena) state(r ref, s *core.State) (side uint16) {
	b := a.bytes(r)
	_ = b[keyOffset]
	s.At = core.Micros(binary.LittleEndian.Uint64(b))
	s.Used = int64(binary.LittleEndian.Uint64(b[8:]))
	s.Aux = int64(binary.LittleEndian.Uint64(b[16:]))
	return binary.LittleEndian.Uint16(b[metaOffset:]) & metaSide
}

// side returns what a record has besides its numbers, and its Aux.
func (a *arena) side(r ref) (aux int64, side uint16) {
	b := a.bytes(r)
	_ = b[keyOffset]
	return int64(binary.LittleEndian.Uint64(b[16:])), binary.LittleEndian.Uint16(b[metaOffset:]) & metaSide
}

// setState writes the numbers of the record's state, with another Aux, its freshness and what it has besides.
func (a *arena) setState(r ref, s *core.State, aux int64, fresh core.Micros, side uint16) {
	b := a.bytes(r)
	_ = b[keyOffset]
	binary.LittleEndian.PutUint64(b, uint64(s.At))
	binary.LittleEndian.PutUint64(b[8:], uint64(s.Used))
	binary.LittleEndian.PutUint64(b[16:], uint64(aux))
	binary.LittleEndian.PutUint64(b[freshOffset:], uint64(fresh))
	meta := binary.LittleEndian.Uint16(b[metaOffset:]) &^ metaSide
	binary.LittleEndian.PutUint16(b[metaOffset:], meta|side)
}
