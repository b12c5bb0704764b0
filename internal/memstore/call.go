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

func (c *call) run(places []place, slots []core.Slot) error {
	s := c.store
	for i := range c.checks {
		places[i].hash = s.shards[0].hash(c.checks[i].Key)
	}
	err := c.lockedRun(places, slots)
	if c.overflow > 0 {
		s.overflow.answered.Add(uint64(c.overflow))
		s.alarm.raise(c.now, s)
	}
	return err
}

// lockedRun answers with the shards locked. They are given back also if that panics: it is one request's affair then, and not that
// of all whose counters are in these shards.
func (c *call) lockedRun(places []place, slots []core.Slot) error {
	s := c.store
	if len(places) == 1 {
		mu := &s.shards[s.shardOf(places[0].hash)].mu
		mu.Lock()
		defer mu.Unlock()
		defer s.tell(&s.shards[s.shardOf(places[0].hash)].table)
		return c.answer(places, slots)
	}
	var set shardSet
	for i := range places {
		set.add(s.shardOf(places[i].hash))
	}
	s.lock(&set)
	defer s.unlock(&set)
	err := c.answer(places, slots)
	for i := range places {
		s.tell(&s.shards[s.shardOf(places[i].hash)].table)
	}
	return err
}

// answer decides, with the shards locked. An error is that of boundaries that the clock is outside of: then nothing is
// changed.
func (c *call) answer(places []place, slots []core.Slot) error {
	s := c.store
	defer func() {
		if c.locked {
			s.overflow.unlock()
		}
	}()
	// The clock is read after the locks and after live, in this order: whoever saw a counter fresh and dropped it did
	// so at an earlier instant than this, and a client that is free to move on may do so now.
	live := s.overflow.live.Load()
	c.now = s.now()
	if newcomers := c.locate(places); newcomers {
		c.settleIn(places, live)
	}
	err := core.Stale(c.now, c.checks)
	if err == nil {
		for i := range places {
			c.load(i, &places[i], &slots[i])
		}
		core.Decide(c.now, c.checks, slots, c.results)
		for i := range places {
			c.keep(i, places, &slots[i])
		}
	} else {
		for i := range places {
			if places[i].born {
				c.drop(&places[i])
			}
		}
	}
	return err
}

// locate finds what is held and says whether some counters are not.
func (c *call) locate(places []place) (newcomers bool) {
	for i := range places {
		p := &places[i]
		t := &c.store.shards[c.store.shardOf(p.hash)].table
		if r, ok := t.find(p.hash, c.checks[i].Key); ok {
			p.table, p.ref = t, r
		} else if c.checks[i].Penalty == nil { // a client without violations has no record of them
			newcomers = true
		}
	}
	return newcomers
}

// settleIn finds a counter for every check that has none of its own. Overflow comes first as long as any of its counters
// is live: a client that was charged there must not get a fresh allowance by moving. Units given back by a client that
// has no counter are dropped: to a shared bucket they could be tokens that time has given back already, and that other
// clients would get as well. Nor is a shared counter forgotten for one client's sake. Penalties are never shared: a
// record is made when there is something to remember, see [call.record].
func (c *call) settleIn(places []place, live bool) {
	if live {
		c.lockOverflow()
	}
	for i := range places {
		check := &c.checks[i]
		if places[i].table != nil || check.Penalty != nil || check.Op == core.OpGiveBack || check.Op == core.OpReset ||
			c.locked && c.stay(places, i) {
			continue
		}
		if charges(check) && !c.own(places, i) {
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

// own gives the check a counter or a record of its own, if there is room.
func (c *call) own(places []place, i int) bool {
	s, p := c.store, &places[i]
	t := &s.shards[s.shardOf(p.hash)].table
	if n := t.reclaim(c.now-s.slack, looksRoom, false, places); n > 0 {
		s.held.Add(-int64(n))
	}
	if length := len(c.checks[i].Key); !s.fits(t, length) || !s.reserve() {
		// The place of a counter that is dropped here passes to the newcomer without being free in between.
		if t.reclaim(c.now, looksFull, true, places) == 0 {
			return false
		}
		if !s.fits(t, length) {
			s.held.Add(-1)
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
	slot.Shared = p.barred || p.table == &c.store.overflow.table
	if !p.barred {
		return
	}
	// A counter with nothing left: the check is refused, and with it the call.
	indebted := [1]core.Slot{{State: slot.State, Marks: slices.Clone(slot.Marks)}}
	debt := [1]core.Check{{Limit: c.checks[i].Limit, Bounds: c.checks[i].Bounds, Op: core.OpForce, Cost: core.CountMax}}
	var recorded [1]core.Result
	core.Decide(c.now, debt[:], indebted[:], recorded[:])
	slot.State, slot.Marks = indebted[0].State, indebted[0].Marks
}

// keep stores what became of a check's counter or penalty.
func (c *call) keep(i int, places []place, slot *core.Slot) {
	p, r := &places[i], &c.results[i]
	if slot.Shared {
		r.Overflow = true
		c.overflow++
	}
	switch {
	case p.barred:
		r.Granted, r.Receipt = 0, 0
	case p.table == nil:
		if c.checks[i].Penalty != nil && slot.Write && c.checks[i].Op != core.OpReset {
			c.record(i, places, slot)
		}
	case slot.Write && c.checks[i].Op != core.OpReset:
		p.table.store(p.ref, &c.checks[i], slot)
	case slot.Write || p.born:
		c.drop(p)
	}
}

// drop forgets a check's counter.
func (c *call) drop(p *place) {
	p.table.remove(p.hash, p.ref)
	if p.table != &c.store.overflow.table {
		c.store.held.Add(-1)
	}
}

// record makes a record for a client's first violation. When there is no room the client gets away with it: to punish it
// together with others would punish those who have done nothing.
func (c *call) record(i int, places []place, slot *core.Slot) {
	if c.own(places, i) {
		places[i].table.store(places[i].ref, &c.checks[i], slot)
		return
	}
	c.results[i] = core.Result{At: c.now, Overflow: true}
	c.overflow++
}
