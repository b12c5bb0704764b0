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
	logs     [][]core.Mark // of the sliding logs, by the number in their Aux
	freeLogs []uint32      // numbers of logs that are free
	held     int
	seed     maphash.Seed // of this process: nobody can choose keys that collide
	mask     uint64       // all ones; tests clear bits to make keys collide
}

func (t *table) init(seed maphash.Seed) {
	t.seed, t.mask = seed, ^uint64(0)
	t.directory = []*segment{new(segment)}
}

func (t *table) hash(key []byte) uint64 { return maphash.Bytes(t.seed, key) & t.mask }

func (t *table) find(hash uint64, key []byte) (ref, bool) { return t.index.find(&t.arena, hash, key) }

// insert adds a counter that nothing was charged on. It fails when the table cannot grow.
func (t *table) insert(hash uint64, key []byte) (ref, bool) {
	if !t.room(hash) {
		return 0, false
	}
	r, ok := t.add(key)
	if !ok {
		return 0, false
	}
	t.at(hash).put(hash, r)
	t.held++
	return r, true
}

// remove forgets a counter.
func (t *table) remove(hash uint64, r ref) {
	if s, log := t.state(r); log {
		t.logs[s.Aux] = nil
		t.freeLogs = append(t.freeLogs, uint32(s.Aux))
	}
	t.index.remove(hash, r)
	t.arena.remove(r)
	t.held--
}

// load reads the counter into an empty slot, as [core.Decide] wants it. The marks are the table's own.
func (t *table) load(r ref, slot *core.Slot) {
	var log bool
	if slot.State, log = t.state(r); log {
		slot.Marks = t.logs[slot.State.Aux]
		slot.State.Aux = 0
	}
}

// store keeps what [core.Decide] made of the counter.
func (t *table) store(r ref, l *core.Limit, s *core.Slot) {
	state, fresh := s.State, l.Fresh(s)
	old, had := t.state(r)
	log := l.Algorithm() == core.SlidingLog
	switch {
	case log && had:
		state.Aux = old.Aux
		t.logs[old.Aux] = trim(s.Marks)
	case log:
		state.Aux = t.newLog(s.Marks)
	case had: // the caller changed the algorithm under one key; its marks mean nothing any more
		t.logs[old.Aux] = nil
		t.freeLogs = append(t.freeLogs, uint32(old.Aux))
	}
	t.setState(r, state, fresh, log)
}

func (t *table) newLog(marks []core.Mark) int64 {
	if last := len(t.freeLogs) - 1; last >= 0 {
		n := t.freeLogs[last]
		t.freeLogs = t.freeLogs[:last]
		t.logs[n] = marks
		return int64(n)
	}
	t.logs = append(t.logs, marks)
	return int64(len(t.logs) - 1)
}

// trimMin is the capacity up to which a log is not worth trimming.
const trimMin = 16

// trim gives memory back when a log holds less than a quarter of what it once did.
func trim(marks []core.Mark) []core.Mark {
	if cap(marks) > trimMin && len(marks) < cap(marks)/4 {
		return append(make([]core.Mark, 0, len(marks)*2), marks...)
	}
	return marks
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
