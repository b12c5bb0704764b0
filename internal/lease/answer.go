// SPDX-License-Identifier: Apache-2.0

package lease

import "github.com/penstock/penstock/core"

// Answer fills in the result of a request that was decided here, as if the store had answered: what it last said, brought
// to now, with what is in hand. What other nodes did meanwhile is not known.
func (c *Counter) Answer(now core.Micros, cost int64, v Verdict, r *core.Result) {
	*r = core.Result{
		At:        now + c.last.ahead,
		Remaining: min(c.capacity, c.last.remaining+c.Held(now)),
		Reset:     max(0, c.last.reset-now),
		Next:      max(0, c.last.next-now),
	}
	switch v {
	case Admit, AdmitAsk:
		r.Granted = cost
	case Deny:
		r.Refused, r.Wait, r.Remaining = true, core.Never, min(r.Remaining, cost-1)
		if cost <= c.capacity && c.passesAt != core.Never {
			r.Wait = max(1, c.passesAt-now)
		}
	}
}
