// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"hash/maphash"

	"github.com/penstock/penstock/core"
)

// table is counters by key: a shard's, or those of overflow. Its owner holds the lock. What every decision reads comes
// first, so that it shares a cache line with the lock.
type table struct {
	index
	arena
	logs    pile[core.Mark]      // of the sliding logs, by the number in their Aux
	records pile[core.Violation] // of the penalties
	leases  map[ref]core.Micros  // of the counters of which units may be out: until when
	dips    map[ref]dips         // of the buckets of which charges may come back
	held    int
	bytes   int64        // that all of it takes
	told    int64        // of bytes, in the store's sum
	seed    maphash.Seed // of this process: nobody can choose keys that collide
	mask    uint64       // all ones; tests clear bits to make keys collide
}

// dips are no larger than what a map holds in place, so that it allocates only when it grows.
type dips [core.DipsMax]core.Dip

func (t *table) init(seed maphash.Seed) {
	t.seed, t.mask = seed, ^uint64(0)
	t.directory = []*segment{new(segment)}
	t.bytes = segmentBytes
}

func (t *table) hash(key []byte) uint64 { return maphash.Bytes(t.seed, key) & t.mask }

func (t *table) find(hash uint64, key []byte) (ref, bool) { return t.index.find(&t.arena, hash, key) }

// insert adds a counter that nothing was charged on. It fails when the table cannot grow.
func (t *table) insert(hash uint64, key []byte) (ref, bool) {
	if !t.room(hash) {
		return 0, false
	}
	t.bytes += t.growth(len(key))
	r, ok := t.add(key)
	if !ok {
		return 0, false
	}
	t.at(hash).put(hash, r)
	t.held++
	return r, true
}

// growth returns how many bytes more the table takes for one more record of the key's length, as long as no segment is
// split for it.
func (t *table) growth(keyLength int) int64 {
	if c, _ := class(keyLength); t.roomy[c] != 0 {
		return 0
	}
	return pageBytes
}

// remove forgets a counter.
func (t *table) remove(hash uint64, r ref) {
	t.release(r)
	t.index.remove(hash, r)
	if t.arena.remove(r) {
		t.bytes -= pageBytes
	}
	t.held--
}

// release frees what a record has besides the numbers of its state.
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

// What the things besides a record take: a mark of a log, a violation, and an entry of the maps for leases and dips.
const (
	markBytes      = 16
	violationBytes = 24
	extraBytes     = 230
)

// load reads the counter into an empty slot, as [core.Decide] wants it. The marks and violations are the table's own.
func (t *table) load(r ref, slot *core.Slot) {
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

// store keeps what [core.Decide] made of the check's counter.
func (t *table) store(r ref, c *core.Check, s *core.Slot) {
	aux, side, fresh := s.State.Aux, uint16(0), core.Micros(0)
	switch {
	case c.Penalty != nil:
		side, fresh = metaRecord, c.Penalty.Fresh(s)
	case c.Limit.Algorithm() == core.SlidingLog:
		side, fresh = metaLog, c.Limit.Fresh(s)
	case s.State.Leased > 0 || s.State.Dips[0].At > 0:
		side, fresh = metaExtra, c.Limit.Fresh(s)
	default:
		fresh = c.Limit.Fresh(s)
	}
	number, had := t.side(r)
	if had != side { // new, has nothing more besides, or the caller changed the algorithm under one key
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

// keep puts an item in a map, or takes it out.
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

// pile is what counters have besides their states, by number.
type pile[T any] struct {
	items  [][]T
	rooms  []uint32 // of each item, its capacity when it was kept: the caller grows items in place
	vacant []uint32
}

// keep puts an item in the place it has, or in a new one if it has none, and returns its number and by how much its
// capacity has grown.
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

// free lets go of an item and returns its capacity.
func (p *pile[T]) free(number int64) (room int64) {
	room = int64(p.rooms[number])
	p.items[number], p.rooms[number] = nil, 0
	p.vacant = append(p.vacant, uint32(number))
	return room
}

// trimMin is the capacity up to which an item is not worth trimming.
const trimMin = 16

// trim gives memory back when an item holds less than a quarter of what it once did.
func trim[T any](item []T) []T {
	if cap(item) > trimMin && len(item) < cap(item)/4 {
		return append(make([]T, 0, len(item)*2), item...)
	}
	return item
}

// reclaim moves the hand over looks records and forgets those that were fresh at horizon, but none of spared. It stops
// at the first if enough says that one is enough. It returns how many it forgot.
func (t *table) reclaim(horizon core.Micros, looks int, enough bool, spared []place) (forgotten int) {
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

// spares says whether the record is one of a call's own.
func (t *table) spares(spared []place, r ref) bool {
	for i := range spared {
		if spared[i].table == t && spared[i].ref == r {
			return true
		}
	}
	return false
}
