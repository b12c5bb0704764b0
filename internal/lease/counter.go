// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"github.com/penstock/penstock/core/counter"
)

// Verdict is the decision about a request.
type Verdict uint8

// The verdicts. The zero Verdict is not valid.
const (
	// Admit: the request's cost was taken from the held units.
	Admit Verdict = iota + 1
	// AdmitAsk is Admit, but the remaining units will probably not last until a call returns. While
	// the request continues, call [Counter.Ask] with a cost of 0, and then the store. If the caller
	// does not do this, later requests might wait, but nothing else is affected.
	AdmitAsk
	// Deny: the store recently denied the same or a smaller cost. [Counter.Answer] returns the
	// result for the client.
	Deny
	// Wait: a call is under way, and the request waits for it. After the call, [Counter.Serve]
	// decides the waiting requests in order of arrival. For a request that stops waiting, call
	// [Counter.Leave].
	Wait
	// Ask: a call to the store is needed, and none is under way. [Counter.Ask] prepares the call.
	// The counter was not changed.
	Ask
)

// Held identifies the units of one Admit, for [Counter.PutBack].
type Held struct {
	Receipt counter.Micros // receipt of the charge to which the units belong
	// whether the units were held and can be held again; otherwise they were granted for this
	// request
	Leased bool
	epoch  uint32
	age    counter.Micros
}

// Counter is one node's state of one counter: the units that the node holds, and the node's
// information about the store. The zero Counter is ready to use and holds nothing. A Counter's
// methods must not be called concurrently. The argument named now must not decrease from call to
// call, so read the clock while holding the lock. The clock is the node's own monotonic clock, with
// any origin. The limits passed to one Counter can differ only in Count and Capacity: everything
// else is part of a counter's key.
type Counter struct {
	_ [0]func() // never compared: see slim.Incomparable

	count, capacity int64 // of the current limit; all other state is valid only for this limit
	window          counter.Micros
	changed         counter.Micros // when the limit last changed
	steadyFrom      counter.Micros // the instant until which each request makes its own call
	algorithm       counter.Algorithm
	asking          bool   // a call is under way
	heard           bool   // last is valid: the store has answered
	epoch           uint32 // epoch of the held units; units of an earlier epoch are refunded
	call            uint32 // number of the call under way; units from an earlier call are refunded

	slots    [2]slot
	reserved slot // units granted for the waiting requests; not leased, so used at once or refunded
	queued   int64
	refunds  [refundsMax]slot // refunds that are not sent yet

	deniedCost  int64 // this cost and greater ones are denied
	deniedUntil counter.Micros
	passesAt    counter.Micros // until this instant the store would deny that cost
	// until this instant the store counts as empty, and only new units are available
	flowUntil counter.Micros

	rates
	low        int64 // take more in advance when at most this many units are held
	lastUse    counter.Micros
	lastExtra  int64 // units that the last answer granted in advance
	lastWanted int64 // units that the last call requested in advance
	rtt        counter.Micros

	last lastAnswer
}

// slot holds units of one charge.
type slot struct {
	units   int64
	until   counter.Micros // the units must be used before this instant
	receipt counter.Micros
	age     counter.Micros // the age sent to the store, or unleased if none was sent
}

// unleased is the age of units that were charged for immediate use, were not used, and
// are refunded. The bucket has reserved nothing for them.
const unleased counter.Micros = 1

// Take decides a request. The argument cost is at least 1.
func (c *Counter) Take(now counter.Micros, l *counter.Limit, cost int64) (Verdict, Held) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.setLimit(now, l)
	}
	if now-c.since >= c.span {
		c.nextSpan(now)
	}
	c.arrived += min(cost, c.capacity)
	if c.queued == 0 {
		if s := c.slotFor(now, cost); s != nil {
			c.use(now, s, cost)
			if c.slots[0].units+c.slots[1].units <= c.low && c.refills(now) {
				return AdmitAsk, Held{s.receipt, true, c.epoch, s.age}
			}
			return Admit, Held{s.receipt, true, c.epoch, s.age}
		}
	}
	switch {
	case c.denies(now, cost):
		return Deny, Held{}
	case c.asking && c.shares(now, cost):
		c.queued += cost
		return Wait, Held{}
	}
	return Ask, Held{}
}

// Decides reports whether Take would decide at once, without a call. Decides changes nothing.
func (c *Counter) Decides(now counter.Micros, l *counter.Limit, cost int64) bool {
	return l.Count() == c.count && l.Capacity() == c.capacity &&
		(c.queued == 0 && c.slotFor(now, cost) != nil || c.denies(now, cost))
}

// slotFor returns the slot that expires first among those with enough units for the cost, or nil if
// no slot has enough.
func (c *Counter) slotFor(now counter.Micros, cost int64) *slot {
	a, b := &c.slots[0], &c.slots[1]
	if b.units >= cost && b.until < a.until {
		a, b = b, a
	}
	if a.units >= cost && now < a.until {
		return a
	}
	if b.units >= cost && now < b.until {
		return b
	}
	return nil
}

func (c *Counter) use(now counter.Micros, s *slot, cost int64) {
	s.units -= cost
	c.used += cost
	c.lastUse = now
}

// Serve decides the first waiting request after a call has returned. The verdict Wait means that
// another call is under way, and the request keeps its place. After any other verdict the request
// no longer waits, and the caller must call Serve again for the next waiting request. If the
// verdict is Ask, this request must make the call. If it does not, another waiting request must
// make it.
func (c *Counter) Serve(now counter.Micros, l *counter.Limit, cost int64) (Verdict, Held) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.setLimit(now, l)
	}
	if c.reserved.units >= cost && now < c.reserved.until {
		held := Held{Receipt: c.reserved.receipt, epoch: c.epoch, age: c.reserved.age}
		c.use(now, &c.reserved, cost)
		c.Leave(cost)
		return Admit, held
	}
	if s := c.slotFor(now, cost); s != nil {
		c.use(now, s, cost)
		c.Leave(cost)
		return Admit, Held{s.receipt, true, c.epoch, s.age}
	}
	switch {
	case c.denies(now, cost):
		c.Leave(cost)
		return Deny, Held{}
	case c.asking && c.shares(now, cost):
		// the reserved units are too few for this request; they are not leased, so they must not be
		// held
		c.refund(&c.reserved, c.reserved.units)
		return Wait, Held{}
	}
	c.Leave(cost)
	return Ask, Held{}
}

// Counter.shares reports whether a request can share a call with others instead of making its
// own.
func (c *Counter) shares(now counter.Micros, cost int64) bool {
	return cost <= c.capacity && now >= c.steadyFrom
}

// Leave removes a request from the waiting requests.
func (c *Counter) Leave(cost int64) {
	if c.queued = max(0, c.queued-cost); c.queued == 0 {
		c.refund(&c.reserved, c.reserved.units)
	}
}

// PutBack puts back the units of an Admit that the request did not use because another limit denied
// it.
func (c *Counter) PutBack(now counter.Micros, cost int64, held Held) {
	c.used = max(0, c.used-cost)
	if c.forgotten(held.epoch) {
		return
	}
	if held.Leased && held.epoch == c.epoch {
		for i := range c.slots {
			if s := &c.slots[i]; s.receipt == held.Receipt && now < s.until {
				s.units, s.age = s.units+cost, min(s.age, held.age)
				return
			}
		}
	}
	c.refund(&slot{units: cost, receipt: held.Receipt, age: held.age}, cost)
}

// Held returns the number of held units that have not expired.
func (c *Counter) Held(now counter.Micros) (units int64) {
	for i := range c.slots {
		if s := &c.slots[i]; now < s.until {
			units += s.units
		}
	}
	return units
}

// setLimit changes the counter's limit. Units charged under the old limit are refunded, and its
// denials are forgotten. A client that alternates between two tiers would thereby return its whole
// lease on every request. So after a second change of the limit within one second, each request
// makes its own call for the next second.
func (c *Counter) setLimit(now counter.Micros, l *counter.Limit) {
	if c.count != 0 && now-c.changed < counter.Second {
		c.steadyFrom = now + counter.Second
	}
	c.changed = now
	c.count, c.capacity, c.window, c.algorithm = l.Count(), l.Capacity(), l.Window(), l.Algorithm()
	c.drop()
	c.deniedUntil, c.flowUntil, c.lastExtra, c.heard = 0, 0, 0, false
}
