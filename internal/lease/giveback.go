// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core"

// TickEvery is how often [Counter.Tick] wants to be called while [Counter.Holding] is true: a tenth of the shortest usual
// age, so that a unit nobody uses is away for little longer than it must.
const TickEvery = 25 * core.Millisecond

// backMax is how many charges may be on their way back between two ticks: both slots', what waited, and one that a request
// put back. Of more, which only a token bucket can have, where each charge is apart, the smallest are lost: the bucket
// refills.
const backMax = 4

// GiveBack is units to return to the store, once, in a call of its own or together with others, without trying again.
type GiveBack struct {
	Units   int64
	Receipt core.Micros // of their charge
	Age     core.Micros // of the lease, as it was asked for: with another one a bucket would credit too much
}

// Fill makes the check one that gives the units back; its Key, Limit and Bounds are the caller's.
func (g *GiveBack) Fill(check *core.Check) {
	check.Op, check.Cost, check.Receipt, check.Age = core.OpGiveBack, g.Units, g.Receipt, g.Age
}

// Tick appends what is to be given back now: what may not be used any more, everything when nothing was used for a while,
// and what is far more than will be used. The counter has forgotten it. Send it, and do not try again.
func (c *Counter) Tick(now core.Micros, backs []GiveBack) []GiveBack {
	for i := range c.slots {
		if s := &c.slots[i]; now >= s.until {
			c.giveBack(s, s.units)
		}
	}
	if held := c.slots[0].units + c.slots[1].units; held > 0 && c.queued == 0 {
		keep := int64(0)
		if now-c.lastUse <= max(idle, 2*c.rtt) {
			keep = 2 + int64(2*c.admits(now, c.horizon()))
		}
		surplus := max(0, held-keep)
		for i := range c.slots {
			s := &c.slots[i]
			n := min(surplus, s.units)
			surplus -= n
			c.giveBack(s, n)
		}
	}
	before := len(backs)
	backs = c.flush(backs)
	for i := range backs[before:] {
		if backs[before+i].Age == unleased { // the store did not know of it when it said how long it would refuse
			c.deniedUntil = min(c.deniedUntil, now+c.rtt)
		}
	}
	return backs
}

// Release appends everything that is held: for a shutdown, a new policy, or a counter that is to be forgotten. What a call
// under way brings goes back as well, at the next Tick.
func (c *Counter) Release(backs []GiveBack) []GiveBack {
	c.drop()
	return c.flush(backs)
}

// Holding reports whether there is anything for Tick to look after.
func (c *Counter) Holding() bool {
	for i := range c.back {
		if c.back[i].units > 0 {
			return true
		}
	}
	return c.slots[0].units+c.slots[1].units+c.due.units > 0
}

// drop gives back everything, and what the call under way brings.
func (c *Counter) drop() {
	c.epoch++
	for i := range c.slots {
		c.giveBack(&c.slots[i], c.slots[i].units)
	}
	c.giveBack(&c.due, c.due.units)
}

// giveBack takes n units out of the slot and puts them on their way back. A bucket whose clock went back a little charges everything
// at one instant: what was leased for different ages then comes back by the least, which is credited least.
func (c *Counter) giveBack(s *slot, n int64) {
	if n <= 0 {
		return
	}
	s.units -= n
	least := &c.back[0]
	for i := range c.back {
		b := &c.back[i]
		switch {
		case b.units == 0:
			b.units, b.receipt, b.age = n, s.receipt, s.age
			return
		case b.receipt == s.receipt:
			b.units, b.age = b.units+n, min(b.age, s.age)
			return
		}
		if b.units < least.units {
			least = b
		}
	}
	if least.units < n {
		least.units, least.receipt, least.age = n, s.receipt, s.age
	}
}

// flush appends what is on its way back.
func (c *Counter) flush(backs []GiveBack) []GiveBack {
	for i := range c.back {
		if b := &c.back[i]; b.units > 0 {
			backs = append(backs, GiveBack{Units: b.units, Receipt: b.receipt, Age: b.age})
			b.units = 0
		}
	}
	return backs
}
