// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core/counter"

// Answer fills in the result of a request that was decided here, as if the store had answered.
// Answer takes the store's last answer, allows for the time that has passed since, and adds the
// units held on this node. Requests that other nodes have sent since are not included.
func (c *Counter) Answer(now counter.Micros, cost int64, v Verdict, r *counter.Result) {
	*r = counter.Result{
		At:        now + c.last.ahead,
		Remaining: min(c.capacity, c.last.remaining+c.Held(now)),
		Reset:     max(0, c.last.reset-now),
		Next:      max(0, c.last.next-now),
	}
	switch v {
	case Admit, AdmitAsk:
		r.Granted = cost
	case Deny:
		r.Denied, r.Wait, r.Remaining = true, counter.Never, min(r.Remaining, cost-1)
		if cost <= c.capacity && c.passesAt != counter.Never {
			r.Wait = max(1, c.passesAt-now)
		}
	}
}
