// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"sync/atomic"
)

// table finds entries by the hash of their name, by open addressing with linear probing. One
// goroutine at a time changes it. Others may call find at the same time, without a lock. A find
// that runs concurrently with a remove may miss an existing entry. Another entry is never mistaken
// for it, because the caller compares the name.
type table struct {
	slots []slot // the number of slots is a power of two, and at most half of them are taken
}

type slot struct {
	hash  atomic.Uint64 // the hash; 0 if the slot is free
	entry atomic.Pointer[entry]
}

// slotsLeast is the number of slots of the smallest table.
const slotsLeast = 16

// newTable returns a table with room for a number of entries.
func newTable(entries int) *table {
	n := slotsLeast
	for n < 2*entries {
		n *= 2
	}
	return &table{slots: make([]slot, n)}
}

// table.full reports whether a further entry needs a larger table.
func (t *table) full(entries int) bool { return 2*(entries+1) > len(t.slots) }

// table.home returns the first slot for a hash. It ignores the lowest bits of the hash, which
// select the shard.
func (t *table) home(hash uint64) int { return int(hash/shardCount) & (len(t.slots) - 1) }

// table.place returns the slot with a hash, or the free slot at which the search ends. While
// another goroutine changes the table, the search may find neither slot. In that case the method
// returns nil.
func (t *table) place(hash uint64) *slot {
	at := t.home(hash)
	for range t.slots {
		s := &t.slots[at]
		if has := s.hash.Load(); has == hash || has == 0 {
			return s
		}
		at = (at + 1) & (len(t.slots) - 1)
	}
	return nil
}

// table.find returns the entry of a hash, or nil.
func (t *table) find(hash uint64) *entry {
	if s := t.place(hash); s != nil && s.hash.Load() == hash {
		return s.entry.Load()
	}
	return nil
}

// table.put stores an entry. It replaces the entry with the same hash, if there is one. The table
// must not be full.
func (t *table) put(e *entry) { t.putAt(e.hash, e) }

// putAt does what put does, for an entry whose hash is known.
func (t *table) putAt(hash uint64, e *entry) {
	s := t.place(hash)
	s.entry.Store(e) // the entry is stored before the hash, by which it is found
	s.hash.Store(hash)
}

// table.grow returns a table with the same entries and room for a number of entries. It does not
// read the entries themselves, because most of them are not in the processor's caches, and new
// clients wait meanwhile.
func (t *table) grow(entries int) *table {
	larger := newTable(entries)
	for i := range t.slots {
		if hash := t.slots[i].hash.Load(); hash != 0 {
			larger.putAt(hash, t.slots[i].entry.Load())
		}
	}
	return larger
}

// table.remove removes the entry of a hash. It closes the gap, so that searches do not end there.
func (t *table) remove(hash uint64) {
	gap, last := t.home(hash), len(t.slots)-1
	for t.slots[gap].hash.Load() != hash {
		gap = (gap + 1) & last
	}
	for at := (gap + 1) & last; ; at = (at + 1) & last {
		s := &t.slots[at]
		moved := s.hash.Load()
		if moved == 0 {
			break
		}
		if (at-t.home(moved))&last < (at-gap)&last { // the home of this entry is behind the gap
			continue
		}
		t.slots[gap].entry.Store(s.entry.Load())
		t.slots[gap].hash.Store(moved)
		gap = at
	}
	t.slots[gap].hash.Store(0)
	t.slots[gap].entry.Store(nil)
}
