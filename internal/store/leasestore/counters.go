// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"sync"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// Bounds of the number of counters that can hold leased units.
const (
	// CountersMaxDefault is the default number of counters. The counters take 27 MB, allocated as
	// needed. No node has traffic for that many hot counters, but many one-time clients can fill
	// the table.
	CountersMaxDefault = 1 << 15
	// CountersMaxBound is the greatest number of counters that can be configured.
	CountersMaxBound = 1 << 24

	shardCount = 256 // this is more than the number of cores, so that calls rarely contend
	// least number of counters in a shard; with fewer, one key could evict another too easily
	shardFill = 4
	glances   = 16 // maximum number of counters examined to find room for a new one
)

// heldCounter represents one counter that can hold units. A heldCounter is guarded by the lock of
// its shard.
type heldCounter struct {
	id      identity
	key     []byte
	scope   int
	limit   counter.Limit
	bounds  counter.Bounds
	dated   bool // whether bounds is set
	settles bool // whether charged units can be refunded after they were used
	counter lease.Counter

	first, last *waiter        // requests that wait for the call under way, in order of arrival
	asked       counter.Micros // when the call under way was sent
	failed      counter.Micros // when the store last failed to answer a call; 0 if it never did
	tries       uint8          // how many calls in a row were overdue before the call under way
	pins        int            // the number of calls under way; the counter must not be evicted before they end
	used        bool           // used since the last search for room
	ticking     bool           // whether the ticker visits the counter
	recording   int64          // the violation that a call under way is recording
}

// shard is one part of the counters.
type shard struct {
	mu      sync.Mutex
	byID    map[identity]*heldCounter
	all     []*heldCounter
	next    int // the index in all at which the next search for room starts
	ticking []*heldCounter
	_       [40]byte
}

// counters are the counters that can hold units. The number of these counters is bounded. If there
// is no room, a counter that holds no units and was not used recently is evicted, with its traffic
// statistics. If there is no such counter, the new one is not held, and each of its requests makes
// a call, as without leases.
type counters struct {
	shards [shardCount]shard
	most   int // per shard
}

func newCounters(most int) *counters {
	c := &counters{most: max(shardFill, most/shardCount)}
	for i := range c.shards {
		c.shards[i].byID = map[identity]*heldCounter{}
	}
	return c
}

func (c *counters) of(id identity) *shard { return &c.shards[id[1]%shardCount] }

// shard.hold returns the counter of a check. If the counter is not held yet, hold adds it, or
// returns nil if there is no room. The caller holds the lock.
func (sh *shard) hold(id identity, c *counter.Check, most int) *heldCounter {
	h := sh.byID[id]
	if h == nil {
		if h = sh.freeCounter(most); h == nil {
			return nil
		}
		h.id, h.key, h.scope, h.limit = id, append(h.key[:0], c.Key...), c.ScopeLen, *c.Limit
		sh.byID[id] = h
	}
	h.used, h.settles = true, c.Refundable
	if c.Limit.Count() != h.limit.Count() || c.Limit.Capacity() != h.limit.Capacity() {
		h.limit = *c.Limit
	}
	if c.Bounds != nil {
		h.bounds, h.dated = *c.Bounds, true
	}
	return h
}

// shard.freeCounter returns a free counter, or nil if there is none. The caller holds the lock.
func (sh *shard) freeCounter(most int) *heldCounter {
	if len(sh.all) < most {
		h := &heldCounter{}
		sh.all = append(sh.all, h)
		return h
	}
	for range min(glances, len(sh.all)) {
		h := sh.all[sh.next]
		sh.next = (sh.next + 1) % len(sh.all)
		switch {
		case h.pins > 0 || h.first != nil || h.ticking:
		case h.used:
			h.used = false
		default:
			delete(sh.byID, h.id)
			*h = heldCounter{key: h.key}
			return h
		}
	}
	return nil
}

// heldCounter.check returns a check of the counter, for a refund or for a call in the background.
func (h *heldCounter) check() counter.Check {
	c := counter.Check{Key: append([]byte(nil), h.key...), ScopeLen: h.scope, Refundable: h.settles}
	limit := h.limit
	c.Limit = &limit
	if h.dated {
		bounds := h.bounds
		c.Bounds = &bounds
	}
	return c
}
