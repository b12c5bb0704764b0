// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core"

// Asking is a call that is to be made of the store. It goes with one request, or with none: then it is made in advance.
type Asking struct {
	Cost       int64 // needed: by the request that asks, and those that wait
	Min        int64 // needed by the one that asks
	Max        int64 // Cost and what is to be taken in advance
	ShareMille int64
	Age        core.Micros // for how long what is taken in advance may be used

	own   int64
	sent  core.Micros
	epoch uint32
	call  uint32
}

// Plain reports whether it asks for the one request's own cost and nothing else: what the request would ask without a
// lease.
func (a *Asking) Plain() bool { return a.own > 0 && a.Max == a.own }

// Fill makes the check ask it; Key, Limit, Bounds and the like are the caller's. A plain one is an OpTake.
func (a *Asking) Fill(check *core.Check) {
	if a.Plain() {
		check.Op, check.Cost = core.OpTake, a.own
		return
	}
	check.Op, check.Cost, check.Min, check.Max, check.ShareMille = core.OpUpTo, a.Cost, a.Min, a.Max, a.ShareMille
	if a.Max > a.Cost {
		check.Age = a.Age
	}
}

// Ask says what to ask the store for a request of that cost, or in advance if cost is 0, and marks the call as under way:
// [Counter.Granted] or [Counter.Failed] must follow. ok is false if a call is under way already, if the cost can never
// pass, or while the limit is one and another by turns: a request then sends its own check as it is, and the counter is
// told nothing of it. now must be no later than the instant at which the call is sent.
func (c *Counter) Ask(now core.Micros, l *core.Limit, cost int64) (a Asking, ok bool) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.become(now, l)
	}
	if c.asking || !c.shares(now, cost) {
		return Asking{}, false
	}
	if now-c.since >= c.span {
		c.turn(now)
	}
	c.giveBack(&c.due, c.due.units) // it did not suffice for the first of those that wait
	need := min(cost+c.queued, core.CountMax)
	extra := min(c.extra(now), core.CountMax-need)
	if need+extra == 0 {
		return Asking{}, false
	}
	c.asking, c.lastWanted = true, extra
	return Asking{Cost: need, Min: max(1, cost), Max: need + extra, ShareMille: c.shareMille(now), Age: c.age(),
		own: cost, sent: now, epoch: c.epoch, call: c.call}, true
}

// Granted takes the store's answer to a call, be it a refusal by this check or by another one of the call; r is this
// check's result. The request that asked has its cost if r.Granted is not 0, as it would have without a lease. What is
// beyond that is for those that wait, whom [Counter.Serve] decides about next, and for the hand.
func (c *Counter) Granted(now core.Micros, a *Asking, r *core.Result) {
	known, current := a.epoch == c.epoch, !c.Overtaken(a)
	c.asking = c.asking && !current
	c.hear(now - a.sent)
	if known {
		c.learn(now, a, r)
	}
	if r.Granted == 0 {
		if known && r.Refused {
			c.lastExtra = 0
			c.refused(now, a, r)
		}
		return
	}
	c.used += a.own
	others := slot{units: r.Granted - a.own, until: core.Never, receipt: r.Receipt, age: unleased}
	if r.Granted > a.Cost {
		others.age = a.Age
	}
	if c.algorithm != core.TokenBucket {
		others.until = within(a.sent, r.Reset)
	}
	if !known || now >= others.until {
		c.lastExtra = 0
		if !c.forgotten(a.epoch) {
			c.giveBack(&others, others.units)
		}
		return
	}
	if extra := max(0, r.Granted-a.Cost); !current {
		c.giveBack(&others, extra) // another call brings what is wanted
	} else if c.lastExtra = extra; extra > 0 {
		others.units -= extra
		c.keep(now, slot{units: extra, until: min(others.until, within(a.sent, a.Age)), receipt: r.Receipt, age: a.Age})
		c.lastUse = now
	}
	c.giveBack(&c.due, c.due.units)
	if c.due = others; c.queued == 0 {
		c.giveBack(&c.due, c.due.units)
	}
	if r.Granted < a.Cost {
		c.refused(now, a, r)
	} else if c.runsDry(now, a, r) {
		c.pace(now, a, r)
	}
	c.low = c.lowAt(now)
}

// Failed says that the call has ended and that it is not known whether the store has executed it. What it may have granted
// is never used. Those that wait are to be served or to leave.
func (c *Counter) Failed(now core.Micros) {
	c.asking = false
	c.lastExtra = 0
}

// keep puts leased units into the hand. Where there is no place they are joined with those that expire first, and expire with them;
// but for those that have expired already, and were not looked at yet.
func (c *Counter) keep(now core.Micros, s slot) {
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
		c.giveBack(old, old.units)
	}
	*old = s
}

// within returns the instant that is certainly no later than span after something that happened no earlier than sent: two
// clocks that are set by the same kind of servers drift apart by less than one part in a thousand.
func within(sent, span core.Micros) core.Micros {
	if span == core.Never {
		return core.Never
	}
	return sent + span - span>>10
}

// refused remembers what the store does not have.
func (c *Counter) refused(now core.Micros, a *Asking, r *core.Result) {
	cost, wait, gap := a.Min, r.Wait, c.gap()
	if fixed := c.algorithm == core.FixedWindow; fixed || !r.Refused || wait < gap {
		cost = r.Remaining + 1
		switch {
		case r.Refused:
		case fixed:
			wait = r.Reset
		case c.algorithm == core.TokenBucket:
			wait = r.Next
		default: // of a sliding window it is not known when more is there
			wait = 0
		}
		if !fixed {
			c.flowUntil = now + horizon
		}
	}
	c.passesAt = core.Never
	if wait < core.Never-now {
		c.passesAt = now + wait
	}
	wait = min(wait, DenialMax)
	if r.LeasedIn > 0 {
		wait = min(wait, r.LeasedIn+c.rtt)
	}
	c.deniedCost, c.deniedUntil = cost, a.sent+wait
	if c.algorithm != core.FixedWindow {
		c.deniedUntil = max(c.deniedUntil, now+c.pause(now, r.At))
	}
	c.passesAt = max(c.passesAt, c.deniedUntil)
}

// runsDry reports whether the store has less than is wanted by all who ask for it, though enough for this call. One that has
// refused here not long ago has, and so does one that is nearly empty: otherwise the nodes that it has refused would leave to
// the others what flows in. Of a sliding window it must be nearer to empty: what a bucket keeps is nobody's there in the end.
func (c *Counter) runsDry(now core.Micros, a *Asking, r *core.Result) bool {
	if r.Granted >= a.Max || c.algorithm == core.FixedWindow {
		return false
	}
	part := dryPart
	if c.algorithm == core.SlidingWindow {
		part /= 10
	}
	return c.flows(now) || float64(r.Remaining) < part*c.everybody*float64(c.gap())
}

// pace has a counter that lives from what flows in asked once in a pause, and not again as soon as what it got is used up:
// more often it would get less each time, and no more in all.
func (c *Counter) pace(now core.Micros, a *Asking, r *core.Result) {
	c.flowUntil = now + horizon
	c.deniedCost, c.deniedUntil = 1, a.sent+c.pause(a.sent, r.At)
	c.passesAt = c.deniedUntil
}

// denies reports whether a cost was refused so lately that the store need not be asked.
func (c *Counter) denies(now core.Micros, cost int64) bool {
	return now < c.deniedUntil && cost >= c.deniedCost
}
