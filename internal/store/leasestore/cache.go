// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"sync"

	"github.com/penstock/penstock/core/counter"
)

// cacheMax is the number of counters or penalties that a cache remembers.
const cacheMax = 1 << 16

// cache remembers a value for each identity until an instant. The cache's size is fixed. A full set
// evicts the value that expires first; an evicted value costs one call to the store. A cache is
// safe for concurrent use.
type cache[V any] struct {
	mask  uint64
	sets  [][setWays]slot[V]
	locks [locks]struct {
		sync.Mutex
		_ [56]byte // pads each lock to a cache line
	}
}

// slot holds one value. The slot is guarded by the lock of its set.
type slot[V any] struct {
	id    identity
	until counter.Micros // the expiry of the value, on this process's clock
	value V
}

// newCache returns a cache whose size is at most the given number of values, and more than half of
// that number.
func newCache[V any](most int) *cache[V] {
	n := 1
	for n*2*setWays <= most {
		n *= 2
	}
	return &cache[V]{mask: uint64(n - 1), sets: make([][setWays]slot[V], n)}
}

// cache.lock locks the set of an identity. It returns the set and its lock, which the caller
// unlocks.
func (t *cache[V]) lock(id identity) (*[setWays]slot[V], *sync.Mutex) {
	index := id[0] & t.mask
	mu := &t.locks[index%locks].Mutex
	mu.Lock()
	return &t.sets[index], mu
}

// find returns the slot of an identity, or nil if it has no value or the value has expired. The
// caller holds the lock.
func find[V any](set *[setWays]slot[V], id identity, now counter.Micros) *slot[V] {
	for i := range set {
		if w := &set[i]; w.id == id && now < w.until {
			return w
		}
	}
	return nil
}

// place returns the slot of an identity, or the slot to evict if the identity has none. The caller
// holds the lock.
func place[V any](set *[setWays]slot[V], id identity) (w *slot[V], known bool) {
	w = &set[0]
	for i := range set {
		if set[i].id == id {
			return &set[i], true
		}
		if set[i].until < w.until {
			w = &set[i]
		}
	}
	return w, false
}
