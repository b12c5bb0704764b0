// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"hash/maphash"

	"github.com/penstock/penstock/core/counter"
)

// table holds the counters of a shard, or the overflow counters, by key. Callers of its methods
// hold the lock of the table's owner. The fields that every decision reads come first, to share a
// cache line with that lock.
type table struct {
	index
	arena
	logs       pile[counter.Mark]      // the marks of the sliding logs, by the numbers in the records' Aux
	records    pile[counter.Violation] // violations of the penalties
	leases     map[ref]counter.Micros  // the ends of the leases, for counters with leased units
	dips       map[ref]dips            // the dips of the buckets with refundable charges
	held       int
	bytes      int64        // the number of bytes that the table takes
	bytesAdded int64        // the part of bytes that is included in the store's sum
	seed       maphash.Seed // the seed, which differs per process, so that a client cannot choose keys that collide
	mask       uint64       // all ones, except in tests that make keys collide
}

// dips is small enough that a map stores it without a separate allocation.
type dips [counter.DipsMax]counter.Dip

func (t *table) init(seed maphash.Seed) {
	t.seed, t.mask = seed, ^uint64(0)
	t.directory = []*segment{new(segment)}
	t.bytes = segmentBytes
}

func (t *table) hash(key []byte) uint64 { return maphash.Bytes(t.seed, key) & t.mask }

func (t *table) find(hash uint64, key []byte) (ref, bool) { return t.index.find(&t.arena, hash, key) }

// table.insert adds a counter without charges. It fails if the table cannot grow.
func (t *table) insert(hash uint64, key []byte) (ref, bool) {
	if !t.makeRoom(hash) {
		return 0, false
	}
	t.bytes += t.growth(len(key))
	r, ok := t.addRecord(key)
	if !ok {
		return 0, false
	}
	t.at(hash).put(hash, r)
	t.held++
	return r, true
}

// table.growth returns the number of bytes that one more record with a key of this length adds to
// the table, not counting the split of a segment.
func (t *table) growth(keyLength int) int64 {
	if c, _ := class(keyLength); t.roomy[c] != 0 {
		return 0
	}
	return pageBytes
}

// table.remove removes a counter.
func (t *table) remove(hash uint64, r ref) {
	t.release(r)
	t.index.remove(hash, r)
	if t.arena.remove(r) {
		t.bytes -= pageBytes
	}
	t.held--
}

// table.release frees the data that a record has outside the arena.
func (t *table) release(r ref) {
	switch number, side := t.side(r); side {
	case metaLog:
		t.bytes -= t.logs.free(number) * markBytes
	case metaRecord:
		t.bytes -= t.records.free(number) * violationBytes
	case metaExtra:
		t.bytes -= extraBytes
		delete(t.leases, r)
		delete(t.dips, r)
	}
}

// The sizes of data outside the arena: a mark of a sliding log, a violation, and an entry of the
// maps leases and dips.
const (
	markBytes      = 16
	violationBytes = 24
	extraBytes     = 230
)

// table.load reads the counter into an empty slot, as [counter.Decide] expects it. The slot shares
// its marks and violations with the table.
func (t *table) load(r ref, slot *counter.Slot) {
	switch t.state(r, &slot.State) {
	case metaLog:
		slot.Marks = t.logs.items[slot.State.Aux]
	case metaRecord:
		slot.Violations = t.records.items[slot.State.Aux]
	case metaExtra:
		slot.State.Leased, slot.State.Dips = t.leases[r], t.dips[r]
		return
	default:
		return
	}
	slot.State.Aux = 0
}

// table.store writes the slot of the check's counter, which [counter.Decide] has changed.
func (t *table) store(r ref, c *counter.Check, s *counter.Slot) {
	aux, side, fresh := s.State.Aux, uint16(0), counter.Micros(0)
	switch {
	case c.Penalty != nil:
		side, fresh = metaRecord, c.Penalty.Fresh(s)
	case c.Limit.Algorithm() == counter.SlidingLog:
		side, fresh = metaLog, c.Limit.Fresh(s)
	case s.State.Leased > 0 || s.State.Dips[0].At > 0:
		side, fresh = metaExtra, c.Limit.Fresh(s)
	default:
		fresh = c.Limit.Fresh(s)
	}
	number, had := t.side(r)
	// Here the record is new, no longer has data outside the arena, or had another algorithm.
	if had != side {
		t.release(r)
	}
	switch side {
	case metaLog:
		var more int64
		aux, more = t.logs.keep(number, had == side, s.Marks)
		t.bytes += more * markBytes
	case metaRecord:
		var more int64
		aux, more = t.records.keep(number, had == side, s.Violations)
		t.bytes += more * violationBytes
	case metaExtra:
		if had != side {
			t.bytes += extraBytes
		}
		keep(&t.leases, r, s.State.Leased, s.State.Leased > 0)
		keep(&t.dips, r, dips(s.State.Dips), s.State.Dips[0].At > 0)
	}
	t.setState(r, &s.State, aux, fresh, side)
}

// keep stores the item of a record in a map. If the argument named there is false, it deletes the
// record's item instead.
func keep[T any](all *map[ref]T, r ref, item T, there bool) {
	switch {
	case !there:
		delete(*all, r)
	case *all == nil:
		*all = map[ref]T{r: item}
	default:
		(*all)[r] = item
	}
}

// pile holds slices that belong to counters, each under a number.
type pile[T any] struct {
	items  [][]T
	rooms  []uint32 // the capacity of each item when it was kept; callers grow items in place
	vacant []uint32
}

// pile.keep stores an item under its number, or under a new number if it has none. It returns the
// number, and by how much the item's capacity has grown.
func (p *pile[T]) keep(number int64, placed bool, item []T) (at, more int64) {
	last := len(p.vacant) - 1
	switch {
	case placed:
		item = trim(item)
	case last >= 0:
		number = int64(p.vacant[last])
		p.vacant = p.vacant[:last]
	default:
		number = int64(len(p.items))
		p.items, p.rooms = append(p.items, nil), append(p.rooms, 0)
	}
	more = int64(cap(item)) - int64(p.rooms[number])
	p.items[number], p.rooms[number] = item, uint32(cap(item))
	return number, more
}

// pile.free removes an item and returns its capacity.
func (p *pile[T]) free(number int64) (room int64) {
	room = int64(p.rooms[number])
	p.items[number], p.rooms[number] = nil, 0
	p.vacant = append(p.vacant, uint32(number))
	return room
}

// trimMin is the capacity up to which an item is not trimmed.
const trimMin = 16

// trim copies the item to a smaller array if it fills less than a quarter of its own.
func trim[T any](item []T) []T {
	if cap(item) > trimMin && len(item) < cap(item)/4 {
		return append(make([]T, 0, len(item)*2), item...)
	}
	return item
}

// table.reclaim moves the hand past a number of records, given by the argument looks. Of these, it
// removes the records that were fresh at the instant horizon, except the records in spared. If
// enough is true, it stops after removing one. table.reclaim returns the number of removed records.
func (t *table) reclaim(horizon counter.Micros, looks int, enough bool, spared []place) (forgotten int) {
	for range looks {
		r, ok := t.advance()
		if !ok || t.freshAt(r) > horizon || t.spares(spared, r) {
			continue
		}
		t.remove(t.hash(t.key(r)), r)
		forgotten++
		if enough {
			break
		}
	}
	return forgotten
}

// table.spares reports whether the record belongs to one of spared, the places of a call.
func (t *table) spares(spared []place, r ref) bool {
	for i := range spared {
		if spared[i].table == t && spared[i].ref == r {
			return true
		}
	}
	return false
}
