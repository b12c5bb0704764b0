// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core/counter"

// Call describes a call to the store: for one request, or in advance if Cost is 0.
type Call struct {
	// units needed now: by the request that makes the call, and by the waiting requests
	Cost       int64
	Min        int64 // units needed by the request that makes the call
	Max        int64 // Cost plus the units to take in advance
	ShareMille int64
	Age        counter.Micros // how long the units taken in advance may be used

	own   int64
	sent  counter.Micros
	epoch uint32
	call  uint32
}

// Plain reports whether the call takes only the request's own cost, as the request would without
// leases.
func (a *Call) Plain() bool { return a.own > 0 && a.Max == a.own }

// Fill sets the check's operation, its amounts and its age. The caller sets Key, Limit, Bounds and
// the rest. A plain call becomes an OpTake.
func (a *Call) Fill(check *counter.Check) {
	if a.Plain() {
		check.Op, check.Cost = counter.OpTake, a.own
		return
	}
	check.Op, check.Cost, check.Min, check.Max, check.ShareMille = counter.OpUpTo, a.Cost, a.Min, a.Max, a.ShareMille
	if a.Max > a.Cost {
		check.Age = a.Age
	}
}

// Ask prepares a call to the store and marks it as under way. The call is for a request of the
// given cost, or in advance if cost is 0. [Counter.Granted] or [Counter.Failed] must follow. The
// instant named now must not be later than the sending of the call. Ask returns false if a call is
// under way already, if the cost exceeds the limit's capacity, or while requests alternate between
// two limits. If Ask returns false, the request sends its own check unchanged, and the caller does
// not pass the result to the Counter.
func (c *Counter) Ask(now counter.Micros, l *counter.Limit, cost int64) (a Call, ok bool) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.setLimit(now, l)
	}
	if c.asking || !c.shares(now, cost) {
		return Call{}, false
	}
	if now-c.since >= c.span {
		c.nextSpan(now)
	}
	c.refund(&c.reserved, c.reserved.units) // there are too few units for the first waiting request
	need := min(cost+c.queued, counter.CountMax)
	extra := min(c.extra(now), counter.CountMax-need)
	if need+extra == 0 {
		return Call{}, false
	}
	c.asking, c.lastWanted = true, extra
	return Call{Cost: need, Min: max(1, cost), Max: need + extra, ShareMille: c.shareMille(now), Age: c.age(),
		own: cost, sent: now, epoch: c.epoch, call: c.call}, true
}

// Granted processes the store's answer to a call; r is the result of this counter's check. Granted
// is called for a denial too, even if another check of the call caused it. The request that made
// the call is admitted if r.Granted is not 0, as it would be without a lease. The other granted
// units go to the waiting requests, which [Counter.Serve] decides next, and into the held units.
func (c *Counter) Granted(now counter.Micros, a *Call, r *counter.Result) {
	known, current := a.epoch == c.epoch, !c.Overtaken(a)
	c.asking = c.asking && !current
	c.measureRTT(now - a.sent)
	if known {
		c.learn(now, a, r)
	}
	if r.Granted == 0 {
		if known && r.Denied {
			c.lastExtra = 0
			c.rememberDenial(now, a, r)
		}
		return
	}
	c.used += a.own
	others := slot{units: r.Granted - a.own, until: counter.Never, receipt: r.Receipt, age: unleased}
	if r.Granted > a.Cost {
		others.age = a.Age
	}
	if c.algorithm != counter.TokenBucket {
		others.until = latestInstant(a.sent, r.Reset)
	}
	if !known || now >= others.until {
		c.lastExtra = 0
		if !c.forgotten(a.epoch) {
			c.refund(&others, others.units)
		}
		return
	}
	if extra := max(0, r.Granted-a.Cost); !current {
		c.refund(&others, extra) // a newer call takes the required units
	} else if c.lastExtra = extra; extra > 0 {
		others.units -= extra
		c.keep(now, slot{units: extra, until: min(others.until, latestInstant(a.sent, a.Age)), receipt: r.Receipt, age: a.Age})
		c.lastUse = now
	}
	c.refund(&c.reserved, c.reserved.units)
	if c.reserved = others; c.queued == 0 {
		c.refund(&c.reserved, c.reserved.units)
	}
	if r.Granted < a.Cost {
		c.rememberDenial(now, a, r)
	} else if c.runsDry(now, a, r) {
		c.paceCalls(now, a, r)
	}
	c.low = c.lowAt(now)
}

// Failed ends a call that the store might or might not have executed. Units that the store might
// have granted are never used. The caller must serve the waiting requests or make them leave.
func (c *Counter) Failed(now counter.Micros) {
	c.asking = false
	c.lastExtra = 0
}

// Counter.keep adds leased units to the held ones. If both slots of the counter are in use, the
// new units go to the slot that expires first. If that slot holds unexpired units of the same
// charge, the new units are added to it and expire with it. Otherwise its units are refunded, and
// the new units replace them.
func (c *Counter) keep(now counter.Micros, s slot) {
	for i := range c.slots {
		if c.slots[i].units == 0 {
			c.slots[i] = s
			return
		}
	}
	old := &c.slots[0]
	if c.slots[1].until < old.until {
		old = &c.slots[1]
	}
	if old.receipt == s.receipt && now < old.until {
		s.units, s.until, s.age = s.units+old.units, min(s.until, old.until), min(s.age, old.age)
	} else {
		c.refund(old, old.units)
	}
	*old = s
}

// latestInstant returns, by this node's clock, the end of a time span that began with an event at
// the store. The result can be too early, but never too late: the event happened no earlier than
// sent, and latestInstant assumes that the two clocks drift apart by less than one part in a
// thousand.
func latestInstant(sent, span counter.Micros) counter.Micros {
	if span == counter.Never {
		return counter.Never
	}
	return sent + span - span>>10
}

// rememberDenial records the cost that the store could not grant.
func (c *Counter) rememberDenial(now counter.Micros, a *Call, r *counter.Result) {
	cost, wait, gap := a.Min, r.Wait, c.gap()
	if fixed := c.algorithm == counter.FixedWindow; fixed || !r.Denied || wait < gap {
		cost = r.Remaining + 1
		switch {
		case r.Denied:
		case fixed:
			wait = r.Reset
		case c.algorithm == counter.TokenBucket:
			wait = r.Next
		default: // because it is not known when a sliding window has room again
			wait = 0
		}
		if !fixed {
			c.flowUntil = now + horizon
		}
	}
	c.passesAt = counter.Never
	if wait < counter.Never-now {
		c.passesAt = now + wait
	}
	wait = min(wait, DenialMax)
	if r.LeasedIn > 0 {
		wait = min(wait, r.LeasedIn+c.rtt)
	}
	c.deniedCost, c.deniedUntil = cost, a.sent+wait
	if c.algorithm != counter.FixedWindow {
		c.deniedUntil = max(c.deniedUntil, now+c.pause(now, r.At))
	}
	c.passesAt = max(c.passesAt, c.deniedUntil)
}

// runsDry reports whether the store has fewer units than all nodes want, although it could grant
// the cost of this call. It assumes this if the store has recently denied a request of this node,
// or has few units left. Without the first condition, the denied nodes would leave all new units to
// the other nodes. For a sliding window, the threshold is lower than for other limits, because
// units that no node takes before the window ends are lost.
func (c *Counter) runsDry(now counter.Micros, a *Call, r *counter.Result) bool {
	if r.Granted >= a.Max || c.algorithm == counter.FixedWindow {
		return false
	}
	part := dryPart
	if c.algorithm == counter.SlidingWindow {
		part /= 10
	}
	return c.flows(now) || float64(r.Remaining) < part*c.everybody*float64(c.gap())
}

// paceCalls limits a counter whose store is nearly empty to one call per pause. With more calls,
// each would get fewer units, and the total would be the same.
func (c *Counter) paceCalls(now counter.Micros, a *Call, r *counter.Result) {
	c.flowUntil = now + horizon
	c.deniedCost, c.deniedUntil = 1, a.sent+c.pause(a.sent, r.At)
	c.passesAt = c.deniedUntil
}

// Counter.denies reports whether the store has recently denied this cost, or a smaller one, so
// that no call is needed.
func (c *Counter) denies(now counter.Micros, cost int64) bool {
	return now < c.deniedUntil && cost >= c.deniedCost
}
