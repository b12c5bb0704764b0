// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core/counter"

// Sending updates a prepared call that is sent only now. The call then also includes the requests
// that have begun to wait since [Counter.Ask].
func (c *Counter) Sending(now counter.Micros, a *Call) {
	if more := min(a.own+c.queued, counter.CountMax-(a.Max-a.Cost)) - a.Cost; more > 0 {
		a.Cost, a.Max = a.Cost+more, a.Max+more
	}
	a.sent = now
}

// Trim makes a call take nothing in advance.
func (a *Call) Trim() { a.Max = a.Cost }

// Observe processes the store's answer to a request that was sent with its own check, without
// [Counter.Ask], at the instant named sent. Observe counts the units that the request used. It
// remembers a denial for as long as the store would repeat it, but at most for a second.
func (c *Counter) Observe(now, sent counter.Micros, l *counter.Limit, cost int64, r *counter.Result) {
	if l.Count() != c.count || l.Capacity() != c.capacity {
		c.setLimit(now, l)
	}
	if now-c.since >= c.span {
		c.nextSpan(now)
	}
	c.learn(now, &Call{sent: sent}, r)
	if r.Granted > 0 {
		c.used += cost
	}
	if !r.Denied || now < c.deniedUntil && c.deniedCost < cost {
		return
	}
	wait := min(r.Wait, DenialMax)
	if r.LeasedIn > 0 { // refunded units take as long to arrive as answers
		wait = min(wait, r.LeasedIn+now-sent)
	}
	c.deniedCost, c.deniedUntil, c.passesAt = cost, sent+wait, addSpan(sent, r.Wait)
}

// Denies reports whether a request of the given cost is denied by a recent answer of the store.
// Denies is used for a request that must not be admitted from the held units.
func (c *Counter) Denies(now counter.Micros, l *counter.Limit, cost int64) bool {
	return l.Count() == c.count && l.Capacity() == c.capacity && c.denies(now, cost)
}

// Allows reports whether a [Counter] may take the given amount of a limit in advance. The bridge
// uses Allows to check the amounts that filters ask for.
func Allows(l *counter.Limit, extra, shareMille int64, age counter.Micros) bool {
	c := Counter{count: l.Count(), capacity: l.Capacity(), window: l.Window(), algorithm: l.Algorithm(), rtt: rttMax}
	return extra >= 0 && extra <= c.capacity/holdPart && shareMille >= 0 && shareMille <= 1000 && age >= 0 && age <= c.age()
}
