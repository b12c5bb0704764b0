// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core"

// Verdict says what becomes of a request.
type Verdict uint8

// The verdicts. The zero Verdict is none of them.
const (
	// Admit: the request's cost was taken out of the hand.
	Admit Verdict = iota + 1
	// AdmitAsk is Admit, and what is left will not last until a call returns: call [Counter.Ask] with a cost of 0, and the
	// store, while the request goes on. Whoever does not loses time and nothing else.
	AdmitAsk
	// Deny: the store refused as much not long ago. [Counter.Answer] tells the client.
	Deny
	// Wait: a call is under way, and the cost was added to what waits for it. When the call has returned, [Counter.Serve]
	// decides, first come, first served; [Counter.Leave] is for who does not wait any longer.
	Wait
	// Ask: the store must be asked, and nobody does. [Counter.Ask] says for how much. Nothing was changed.
	Ask
)

// Held names the units of one Admit, for [Counter.PutBack].
type Held struct {
	Receipt core.Micros // of the charge they are of
	Leased  bool        // from the hand, where they may go back to; otherwise granted for this very request
	epoch   uint32
	age     core.Micros
}

// Counter is what a node holds of one counter. The zero Counter is ready and holds nothing. Its methods must not be called
// concurrently, and now must not go back: read the clock when you have the lock. That clock is the node's own, monotonic,
// from any origin. Limits given to it differ in Count and Capacity at most: all else is in a counter's key.
type Counter struct {
	count, capacity int64 // of the limit: under another one, nothing that is held or known is of use
	window          core.Micros
	changed         core.Micros // when the limit became another
	steadyFrom      core.Micros // until when each request makes its own call
	algorithm       core.Algorithm
	asking          bool   // a call is under way
	heard           bool   // an answer of the store is known
	epoch           uint32 // of what is held; what comes from an earlier one goes back
	call            uint32 // of what is under way; what comes from an earlier one goes back

	slots  [2]slot
	due    slot // granted for those that wait, and not leased: used by them, now, or given back
	queued int64
	back   [backMax]slot // on its way back

	deniedCost  int64 // from this cost on,
	deniedUntil core.Micros
	passesAt    core.Micros // when the store said that it would pass
	flowUntil   core.Micros // until when the store counts as empty, living from what flows in

	rates
	low        int64 // ask for more when no more than this is in hand
	lastUse    core.Micros
	lastExtra  int64 // units granted beyond what was needed, by the last answer
	lastWanted int64 // units asked for beyond what was needed, in the last call
	rtt        core.Micros

	last seen
}

// slot is units of one charge.
type slot struct {
	units   int64
	until   core.Micros // exclusive: when they are of no use any more
	receipt core.Micros
	age     core.Micros // as the store was told; unleased if it was told none
}

// unleased is the age of what was charged for a use at once and comes back unused after all: the bucket has held nothing
// back for it.
const unleased core.Micros = 1

// Take decides a request of that cost, 1 or more.
func (c *Counter) Take(now core.Micros, l *core.Limit, cost int64) (Verdict, Held) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.become(now, l)
	}
	if now-c.since >= c.span {
		c.turn(now)
	}
	c.arrived += min(cost, c.capacity)
	if c.queued == 0 {
		if s := c.hand(now, cost); s != nil {
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

// hand returns the units to take cost from: of those that suffice the ones that end first, nil if none do.
func (c *Counter) hand(now core.Micros, cost int64) *slot {
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

func (c *Counter) use(now core.Micros, s *slot, cost int64) {
	s.units -= cost
	c.used += cost
	c.lastUse = now
}

// Serve decides for the first of those that were told to wait, once the call has returned. Wait says that another one is
// under way; then the request keeps its place. After any other verdict it waits no longer, and the next one is to be
// served, except after Ask: then this request is the one to ask, and what it does not do, somebody else must.
func (c *Counter) Serve(now core.Micros, l *core.Limit, cost int64) (Verdict, Held) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.become(now, l)
	}
	if c.due.units >= cost && now < c.due.until {
		held := Held{Receipt: c.due.receipt, epoch: c.epoch, age: c.due.age}
		c.use(now, &c.due, cost)
		c.Leave(cost)
		return Admit, held
	}
	if s := c.hand(now, cost); s != nil {
		c.use(now, s, cost)
		c.Leave(cost)
		return Admit, Held{s.receipt, true, c.epoch, s.age}
	}
	switch {
	case c.denies(now, cost):
		c.Leave(cost)
		return Deny, Held{}
	case c.asking && c.shares(now, cost):
		c.giveBack(&c.due, c.due.units) // it did not suffice, and is not leased, to be held
		return Wait, Held{}
	}
	c.Leave(cost)
	return Ask, Held{}
}

// shares reports whether a request may share a call with others, and not only make its own.
func (c *Counter) shares(now core.Micros, cost int64) bool {
	return cost <= c.capacity && now >= c.steadyFrom
}

// Leave takes a request out of those that wait.
func (c *Counter) Leave(cost int64) {
	if c.queued = max(0, c.queued-cost); c.queued == 0 {
		c.giveBack(&c.due, c.due.units)
	}
}

// PutBack returns the units of an Admit that the request did not use after all: another limit refused it.
func (c *Counter) PutBack(now core.Micros, cost int64, held Held) {
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
	c.giveBack(&slot{units: cost, receipt: held.Receipt, age: held.age}, cost)
}

// Held returns the units in hand.
func (c *Counter) Held(now core.Micros) (units int64) {
	for i := range c.slots {
		if s := &c.slots[i]; now < s.until {
			units += s.units
		}
	}
	return units
}

// become takes over a limit. What was charged under another one goes back, and what it refused says nothing of this one.
// Requests under two limits by turns, of a client with two tiers, would have everything go back all the time: in a counter
// that changes again within the second each request makes its own call for another one.
func (c *Counter) become(now core.Micros, l *core.Limit) {
	if c.count != 0 && now-c.changed < core.Second {
		c.steadyFrom = now + core.Second
	}
	c.changed = now
	c.count, c.capacity, c.window, c.algorithm = l.Count(), l.Capacity(), l.Window(), l.Algorithm()
	c.drop()
	c.deniedUntil, c.flowUntil, c.lastExtra, c.heard = 0, 0, 0, false
}
