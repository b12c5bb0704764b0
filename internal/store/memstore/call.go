// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// call holds the state of one call of Take. Locks are always taken in the same order: shards
// ascending, then overflow. The places and slots of the checks are arguments of the methods of
// call, so that they remain on the stack of Take.
type call struct {
	store    *Store
	checks   []counter.Check
	results  []counter.Result
	now      counter.Micros
	locked   bool // whether the lock of overflow is held
	overflow int  // the number of checks answered by overflow counters
}

// place is the location of a check's counter.
type place struct {
	// nil if there is no counter: the check gets the answer of a fresh counter and charges nothing
	table *table
	hash  uint64
	ref   ref
	born  bool // this call created the counter; it is removed if nothing is charged
	// whether the check cannot charge its counter, because another check of the call has the same
	// overflow counter, or the overflow table is full. The former never happens to the checks of
	// one request.
	barred bool
}

// The numbers of records that the eviction hand examines for each new counter: looksRoom while
// there is room, and looksFull in a full store, before the newcomer gets an overflow counter. If
// the hand examined two, as many counters would be removed as are created. By examining more than
// two, it removes counters soon after they become fresh.
const (
	looksRoom = 4
	looksFull = 32
)

// call.run answers the call, and counts the checks answered by overflow counters.
func (c *call) run(places []place, slots []counter.Slot) error {
	s := c.store
	for i := range c.checks {
		places[i].hash = s.shards[0].hash(c.checks[i].Key)
	}
	err := c.runLocked(places, slots)
	if c.overflow > 0 {
		s.overflow.answered.Add(uint64(c.overflow))
		s.alarm.raise(c.now, s)
	}
	return err
}

// runLocked answers the call with its shards locked. runLocked releases the locks even on a panic.
// So a panic fails one request, and does not block the other clients of these shards.
func (c *call) runLocked(places []place, slots []counter.Slot) error {
	s := c.store
	if len(places) == 1 {
		mu := &s.shards[s.shardOf(places[0].hash)].mu
		mu.Lock()
		defer mu.Unlock()
		defer s.addBytes(&s.shards[s.shardOf(places[0].hash)].table)
		return c.answer(places, slots)
	}
	var set shardSet
	for i := range places {
		set.include(s.shardOf(places[i].hash))
	}
	s.lock(&set)
	defer s.unlock(&set)
	err := c.answer(places, slots)
	s.addBytesOf(&set) // by the set of shards, because the place of an overflow counter has a different hash
	return err
}

// call.answer decides the call. The shards are locked. If the clock is outside the boundaries of a
// calendar window, answer returns an error and changes nothing.
func (c *call) answer(places []place, slots []counter.Slot) error {
	s := c.store
	defer func() {
		if c.locked {
			s.overflow.unlock()
		}
	}()
	// The clock is read after the locks are taken and after the flag live is read. So any call that
	// removed a fresh counter has read the clock before. An overflow counter that was fresh at the
	// time of that call is still fresh.
	live := s.overflow.live.Load()
	c.now = s.now()
	if newcomers := c.locate(places); newcomers {
		c.placeNewcomers(places, live)
	}
	err := counter.Stale(c.now, c.checks)
	if err == nil {
		for i := range places {
			c.load(i, &places[i], &slots[i])
		}
		counter.Decide(c.now, c.checks, slots, c.results)
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

// call.locate finds the counters that the store holds and reports whether some are missing.
func (c *call) locate(places []place) (newcomers bool) {
	for i := range places {
		p := &places[i]
		t := &c.store.shards[c.store.shardOf(p.hash)].table
		if r, ok := t.find(p.hash, c.checks[i].Key); ok {
			p.table, p.ref = t, r
		} else if c.checks[i].Penalty == nil { // a client without violations has no record
			newcomers = true
		}
	}
	return newcomers
}

// placeNewcomers finds or creates a counter for every check without one.
//
// While overflow counters exist, the client's overflow counter is tried first: a client that was
// charged there must not get a fresh allowance. A refund for a client without a counter is dropped.
// A shared bucket might have refilled those tokens already, and would give them to other clients. A
// reset does not affect a shared counter. Penalties are never shared: [call.record] creates the
// record of a client's first violation.
func (c *call) placeNewcomers(places []place, live bool) {
	if live {
		c.lockOverflow()
	}
	for i := range places {
		check := &c.checks[i]
		if places[i].table != nil || check.Penalty != nil || check.Op == counter.OpRefund || check.Op == counter.OpReset ||
			c.locked && c.keepOverflow(places, i) {
			continue
		}
		if mayAddCounter(check) && !c.makeCounter(places, i) {
			c.lockOverflow()
			c.takeOverflow(places, i)
		}
	}
}

// mayAddCounter reports whether the check might need a counter that does not exist yet.
func mayAddCounter(c *counter.Check) bool {
	switch c.Op {
	case counter.OpLook:
		return false
	case counter.OpUpTo:
		return true
	default:
		return c.Cost > 0
	}
}

// makeCounter creates a counter or a penalty record for the check. makeCounter reports whether
// there was room.
func (c *call) makeCounter(places []place, i int) bool {
	s, p := c.store, &places[i]
	t := &s.shards[s.shardOf(p.hash)].table
	if n := t.reclaim(c.now-s.slack, looksRoom, false, places); n > 0 {
		s.held.Add(-int64(n))
	}
	if length := len(c.checks[i].Key); !s.hasRoom(t, length) || !s.reserve() {
		// The newcomer takes the place of the removed counter. No other newcomer can take it in
		// between.
		if t.reclaim(c.now, looksFull, true, places) == 0 {
			return false
		}
		if !s.hasRoom(t, length) {
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

// call.load reads the check's counter into an empty slot.
func (c *call) load(i int, p *place, slot *counter.Slot) {
	if p.table != nil {
		p.table.load(p.ref, slot)
	}
	slot.Shared = p.barred || p.table == &c.store.overflow.table
	if !p.barred {
		return
	}
	// The check is decided by a counter with no units left, so it is denied, and the call with it.
	indebted := [1]counter.Slot{{State: slot.State, Marks: slices.Clone(slot.Marks)}}
	debt := [1]counter.Check{{Limit: c.checks[i].Limit, Bounds: c.checks[i].Bounds, Op: counter.OpForce, Cost: counter.CountMax}}
	var recorded [1]counter.Result
	counter.Decide(c.now, debt[:], indebted[:], recorded[:])
	slot.State, slot.Marks = indebted[0].State, indebted[0].Marks
}

// call.keep stores the slot of a check after [counter.Decide] has changed it.
func (c *call) keep(i int, places []place, slot *counter.Slot) {
	p, r := &places[i], &c.results[i]
	if slot.Shared {
		r.Overflow = true
		c.overflow++
	}
	switch {
	case p.barred:
		r.Granted, r.Receipt = 0, 0
	case p.table == nil:
		if c.checks[i].Penalty != nil && slot.Write && c.checks[i].Op != counter.OpReset {
			c.record(i, places, slot)
		}
	case slot.Write && c.checks[i].Op != counter.OpReset:
		p.table.store(p.ref, &c.checks[i], slot)
	case slot.Write || p.born:
		c.drop(p)
	}
}

// call.drop removes the counter of a check.
func (c *call) drop(p *place) {
	p.table.remove(p.hash, p.ref)
	if p.table != &c.store.overflow.table {
		c.store.held.Add(-1)
	}
}

// call.record creates the record of a client's first violation. If there is no room, the violation
// is not remembered, because a shared record would punish other clients.
func (c *call) record(i int, places []place, slot *counter.Slot) {
	if c.makeCounter(places, i) {
		places[i].table.store(places[i].ref, &c.checks[i], slot)
		return
	}
	c.results[i] = counter.Result{At: c.now, Overflow: true}
	c.overflow++
}
