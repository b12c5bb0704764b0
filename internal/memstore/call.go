// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"slices"

	"github.com/penstock/penstock/core"
)

// call is one call of Take under way. Its locks are taken in one order everywhere: shards ascending, then overflow. The
// places and slots of its checks go from function to function beside it: only so can they stay on Take's stack.
type call struct {
	store    *Store
	checks   []core.Check
	results  []core.Result
	now      core.Micros
	locked   bool // the lock of overflow is held
	overflow int  // checks answered by overflow
}

// place is where a check's counter is.
type place struct {
	table *table // nil: nowhere; the check is answered by a fresh counter and can charge nothing
	hash  uint64
	ref   ref
	born  bool // this call made it: it goes again if nothing is charged
	// barred: this check can charge nothing, because another of this call has the same overflow counter already (a call
	// about one request has no such two) or because even overflow has no room.
	barred bool
}

// Looks of the hand. Two per newcomer would keep pace with counters that come and go; more shorten the time for which a
// fresh counter stays. When the store is full a newcomer may look further before it is counted by overflow.
const (
	looksRoom = 4
	looksFull = 32
)

func (c *call) run(places []place, slots []core.Slot) {
	s := c.store
	for i := range c.checks {
		places[i].hash = s.shards[0].hash(c.checks[i].Key)
	}
	if len(places) == 1 {
		mu := &s.shards[s.shardOf(places[0].hash)].mu
		mu.Lock()
		c.answer(places, slots)
		mu.Unlock()
	} else {
		var set shardSet
		for i := range places {
			set.add(s.shardOf(places[i].hash))
		}
		s.lock(&set)
		c.answer(places, slots)
		s.unlock(&set)
	}
	if c.overflow > 0 {
		s.overflow.answered.Add(uint64(c.overflow))
		s.alarm.raise(c.now, s.max)
	}
}

// answer decides, with the shards locked.
func (c *call) answer(places []place, slots []core.Slot) {
	s := c.store
	// The clock is read after the locks and after live, in this order: whoever saw a counter fresh and dropped it did
	// so at an earlier instant than this, and a client that is free to move on may do so now.
	live := s.overflow.live.Load()
	c.now = s.now()
	if newcomers := c.locate(places); newcomers {
		c.settleIn(places, live)
	}
	for i := range places {
		c.load(i, &places[i], &slots[i])
	}
	core.Decide(c.now, c.checks, slots, c.results)
	for i := range places {
		c.keep(i, &places[i], &slots[i])
	}
	if c.locked {
		s.overflow.unlock()
	}
}

// locate finds the counters that are held and says whether some are not.
func (c *call) locate(places []place) (newcomers bool) {
	for i := range places {
		p := &places[i]
		t := &c.store.shards[c.store.shardOf(p.hash)].table
		if r, ok := t.find(p.hash, c.checks[i].Key); ok {
			p.table, p.ref = t, r
		} else {
			newcomers = true
		}
	}
	return newcomers
}

// settleIn finds a counter for every check that has none of its own. Overflow comes first as long as any of its counters
// is live: a client that was charged there must not get a fresh allowance by moving. Units given back by a client that
// has no counter are dropped: to a shared bucket they could be tokens that time has given back already, and that other
// clients would get as well.
func (c *call) settleIn(places []place, live bool) {
	if live {
		c.lockOverflow()
	}
	for i := range places {
		if places[i].table != nil || c.checks[i].Op == core.OpGiveBack || c.locked && c.stay(places, i) {
			continue
		}
		if charges(&c.checks[i]) && !c.own(places, i) {
			c.lockOverflow()
			c.share(places, i)
		}
	}
}

// charges says whether the check may need a counter that is not there yet.
func charges(c *core.Check) bool {
	switch c.Op {
	case core.OpLook:
		return false
	case core.OpUpTo:
		return true
	default:
		return c.Cost > 0
	}
}

// own gives the check a counter of its own, if there is room.
func (c *call) own(places []place, i int) bool {
	s, p := c.store, &places[i]
	t := &s.shards[s.shardOf(p.hash)].table
	if n := t.reclaim(c.now-s.slack, looksRoom, false, places); n > 0 {
		s.held.Add(-int64(n))
	}
	if !s.reserve() {
		// The place of a counter that is dropped here passes to the newcomer without being free in between.
		if t.reclaim(c.now, looksFull, true, places) == 0 {
			return false
		}
	}
	r, ok := t.insert(p.hash, c.checks[i].Key)
	if !ok {
		s.held.Add(-1)
		return false
	}
	p.table, p.ref, p.born = t, r, true
	return true
}

func (c *call) load(i int, p *place, slot *core.Slot) {
	if p.table != nil {
		p.table.load(p.ref, slot)
	}
	if !p.barred {
		return
	}
	// A counter with nothing left: the check is refused, and with it the call.
	indebted := [1]core.Slot{{State: slot.State, Marks: slices.Clone(slot.Marks)}}
	debt := [1]core.Check{{Limit: c.checks[i].Limit, Op: core.OpForce, Cost: core.CountMax}}
	var recorded [1]core.Result
	core.Decide(c.now, debt[:], indebted[:], recorded[:])
	*slot = indebted[0]
}

// keep stores what became of a check's counter.
func (c *call) keep(i int, p *place, slot *core.Slot) {
	r := &c.results[i]
	shared := p.table == &c.store.overflow.table
	if shared || p.barred {
		r.Overflow = true
		c.overflow++
	}
	switch {
	case p.barred:
		r.Granted, r.Receipt = 0, 0
	case p.table == nil:
	case slot.Write:
		p.table.store(p.ref, c.checks[i].Limit, slot)
	case p.born:
		p.table.remove(p.hash, p.ref)
		if !shared {
			c.store.held.Add(-1)
		}
	}
}
