// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"sync"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// Bounds of the counters of which units may be in hand.
const (
	// CountersMaxDefault is how many counters are held unless told otherwise: 27 MB of them, taken as they come. No node has traffic
	// for as many hot ones, and a crowd of strangers fills them all.
	CountersMaxDefault = 1 << 15
	// CountersMaxBound is the greatest number that can be asked for.
	CountersMaxBound = 1 << 24

	shardCount = 256 // more than there are cores, so that calls seldom meet
	shardFill  = 4   // counters that a shard has at least: fewer would make some keys' place depend on others' too much
	glances    = 16  // how many counters are looked at to find the place of a newcomer
)

// held is one counter, of which units may be in hand. Its shard's lock guards it.
type held struct {
	id      identity
	key     []byte
	scope   int
	limit   core.Limit
	bounds  core.Bounds
	dated   bool // there are bounds
	settles bool // what is charged may be given back once it has been used
	counter lease.Counter

	first, last *waiter     // who waits for the call under way, first come, first served
	asked       core.Micros // when that went out
	tries       uint8       // calls that were overdue, one after the other, before it
	pins        int         // calls under way: it must not be forgotten meanwhile
	used        bool        // since it was looked at to make room
	ticking     bool        // it is among those that the ticker looks after
	recording   int64       // the violation that a call under way will have recorded
}

// shard is a part of the counters.
type shard struct {
	mu      sync.Mutex
	byID    map[identity]*held
	all     []*held
	next    int // of all, to be looked at for room
	ticking []*held
	_       [40]byte
}

// counters are those that are held. Their number is bounded: where there is no room, one that holds nothing and was not
// asked for lately is forgotten, with what is known of its traffic; and if there is none, a counter is not held, and each of
// its requests is a call, as without a lease.
type counters struct {
	shards [shardCount]shard
	most   int // in a shard
}

func newCounters(most int) *counters {
	c := &counters{most: max(shardFill, most/shardCount)}
	for i := range c.shards {
		c.shards[i].byID = map[identity]*held{}
	}
	return c
}

func (c *counters) of(id identity) *shard { return &c.shards[id[1]%shardCount] }

// hold returns the counter of a check, which it begins to hold if there is room, otherwise nil. The caller holds the lock.
func (sh *shard) hold(id identity, c *core.Check, most int) *held {
	h := sh.byID[id]
	if h == nil {
		if h = sh.room(most); h == nil {
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

// room returns a counter that holds nothing and is nobody's, nil if there is none.
func (sh *shard) room(most int) *held {
	if len(sh.all) < most {
		h := &held{}
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
			*h = held{key: h.key}
			return h
		}
	}
	return nil
}

// check returns a check of the counter, for what the counter asks of its own.
func (h *held) check() core.Check {
	c := core.Check{Key: append([]byte(nil), h.key...), ScopeLen: h.scope, Refundable: h.settles}
	limit := h.limit
	c.Limit = &limit
	if h.dated {
		bounds := h.bounds
		c.Bounds = &bounds
	}
	return c
}
