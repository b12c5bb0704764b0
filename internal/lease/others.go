// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core"

// Sending says that a call goes out only now, and asks for what has begun to wait since [Counter.Ask] as well.
func (c *Counter) Sending(now core.Micros, a *Asking) {
	if more := min(a.own+c.queued, core.CountMax-(a.Max-a.Cost)) - a.Cost; more > 0 {
		a.Cost, a.Max = a.Cost+more, a.Max+more
	}
	a.sent = now
}

// Trim makes a call ask for nothing in advance.
func (a *Asking) Trim() { a.Max = a.Cost }

// Hear takes the store's answer to a request that was sent then and asked for itself, of which [Counter.Ask] knew nothing:
// what it used, and what was refused. That is remembered exactly as long as the store would refuse it, a second at most.
func (c *Counter) Hear(now, sent core.Micros, l *core.Limit, cost int64, r *core.Result) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.become(now, l)
	}
	if now-c.since >= c.span {
		c.turn(now)
	}
	c.learn(now, &Asking{sent: sent}, r)
	if r.Granted > 0 {
		c.used += cost
	}
	if !r.Refused || now < c.deniedUntil && c.deniedCost < cost {
		return
	}
	wait := min(r.Wait, DenialMax)
	if r.LeasedIn > 0 { // units that come back travel as far as answers do
		wait = min(wait, r.LeasedIn+now-sent)
	}
	c.deniedCost, c.deniedUntil, c.passesAt = cost, sent+wait, later(sent, r.Wait)
}

// Denies reports whether a request of that cost is refused by what the store said a moment ago: for one that is not to be
// admitted from the hand.
func (c *Counter) Denies(now core.Micros, l *core.Limit, cost int64) bool {
	return l.Count() == c.count && l.Capacity() == c.capacity && c.denies(now, cost)
}

// Allows reports whether a [Counter] may ask so much of a limit in advance: for who takes such questions from others.
func Allows(l *core.Limit, extra, shareMille int64, age core.Micros) bool {
	c := Counter{count: l.Count(), capacity: l.Capacity(), window: l.Window(), algorithm: l.Algorithm(), rtt: rttMax}
	return extra >= 0 && extra <= c.capacity/holdPart && shareMille >= 0 && shareMille <= 1000 && age >= 0 && age <= c.age()
}
