// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core/counter"

// TickEvery is how often to call [Counter.Tick] while [Counter.Holding] is true. TickEvery is a
// tenth of the shortest usual age, so unused units return soon after they expire.
const TickEvery = 25 * counter.Millisecond

// refundsMax is the greatest number of refunds between two ticks: one for each slot, one for the
// waiting requests' units, and one for units that a request put back. Only a token bucket can have
// more, because each of its charges is separate. Its smallest refunds are then dropped, because the
// bucket refills anyway.
const refundsMax = 4

// Refund is a number of units to return to the store. Send it once, alone or together with others,
// and never again.
type Refund struct {
	Units   int64
	Receipt counter.Micros // receipt of the charge of these units
	// age of the lease, as in the call; with another age a bucket would credit too much
	Age counter.Micros
}

// Fill makes the check a refund of these units. The caller sets Key, Limit and Bounds.
func (g *Refund) Fill(check *counter.Check) {
	check.Op, check.Cost, check.Receipt, check.Age = counter.OpRefund, g.Units, g.Receipt, g.Age
}

// Tick appends the refunds that are due: expired units, all units if none were used for a while,
// and units far in excess of the expected use. The counter no longer holds these units. Send each
// refund once.
func (c *Counter) Tick(now counter.Micros, backs []Refund) []Refund {
	for i := range c.slots {
		if s := &c.slots[i]; now >= s.until {
			c.refund(s, s.units)
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
			c.refund(s, n)
		}
	}
	before := len(backs)
	backs = c.flush(backs)
	for i := range backs[before:] {
		// The store's last wait did not allow for these units, so the remembered denial ends
		// sooner.
		if backs[before+i].Age == unleased {
			c.deniedUntil = min(c.deniedUntil, now+c.rtt)
		}
	}
	return backs
}

// Release appends a refund of every held unit. Release is used at a shutdown, for a new policy, or
// before the counter is discarded. Units from the call under way are refunded at the next Tick.
func (c *Counter) Release(backs []Refund) []Refund {
	c.drop()
	return c.flush(backs)
}

// Holding reports whether Tick must be called.
func (c *Counter) Holding() bool {
	for i := range c.refunds {
		if c.refunds[i].units > 0 {
			return true
		}
	}
	return c.slots[0].units+c.slots[1].units+c.reserved.units > 0
}

// Counter.drop refunds every held unit, and later those from the call under way.
func (c *Counter) drop() {
	c.epoch++
	for i := range c.slots {
		c.refund(&c.slots[i], c.slots[i].units)
	}
	c.refund(&c.reserved, c.reserved.units)
}

// Counter.refund moves n units from the slot to the refunds to be sent. A bucket whose clock
// went back a little makes several charges at one instant. Units that were leased for different
// ages are then refunded with the shortest age, for which the bucket credits least.
func (c *Counter) refund(s *slot, n int64) {
	if n <= 0 {
		return
	}
	s.units -= n
	least := &c.refunds[0]
	for i := range c.refunds {
		b := &c.refunds[i]
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

// Counter.flush appends the collected refunds.
func (c *Counter) flush(backs []Refund) []Refund {
	for i := range c.refunds {
		if b := &c.refunds[i]; b.units > 0 {
			backs = append(backs, Refund{Units: b.units, Receipt: b.receipt, Age: b.age})
			b.units = 0
		}
	}
	return backs
}
