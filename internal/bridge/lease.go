// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
	"github.com/penstock/penstock/internal/tally"
	"github.com/penstock/penstock/internal/wire"
)

// A filter may take units of a limit in advance, and decide by them what it would ask otherwise. Which limit, and by which
// key, follows from the request that it asks for: it says no more than how many. More than a node's share is refused, as is
// what the rule does not lease.
//
// What it then does with them is not proven: whoever can ask at all can as well let requests pass without asking, since it is
// the one that holds them up. To give back is another matter: that gives somebody an allowance. So it takes a receipt, sealed
// here, which is good once, for as many units as were granted at most.

// leasing is what is asked for a question beside what its request costs.
type leasing struct {
	taken   []taken
	fetch   [1]core.Check // of KindFetch
	fetched [1]core.Result
}

// taken is a check that asks for more than its request's cost.
type taken struct {
	check int
	own   int64
}

// leases has the checks of a question ask for what the filter wants of them. Where the filter takes the request for another
// client's, since its credentials are worth something else by now, nothing is taken, and the verdict tells it.
func (q *question) leases() {
	checks, fetches := q.plan.Checks(), q.item.Kind == wire.KindFetch
	if _, admits := q.plan.Aside(); !admits {
		checks = nil
	}
	before := -1
	for i := range q.item.Units {
		u := &q.item.Units[i]
		known := u.Check > before && u.Check < len(checks) && wire.CounterOf(&checks[u.Check]) == u.Counter
		if u.Check <= before || known && !q.wants(u, &checks[u.Check]) {
			q.first, q.answer.Status = nil, wire.StatusInvalid
			return
		}
		before = u.Check
	}
	switch {
	case !fetches:
	case len(q.item.Units) != 1:
		q.first, q.answer.Status = nil, wire.StatusInvalid
	case len(q.lease.taken) == 0:
		q.first, q.answer.Status = nil, wire.StatusUnknown
	default:
		q.lease.fetch[0] = checks[before]
		q.first = q.lease.fetch[:]
	}
}

// wants has a check ask for what the filter wants. It reports false if nobody may want that.
func (q *question) wants(u *wire.Units, c *core.Check) bool {
	own := c.Cost
	if q.item.Kind == wire.KindFetch {
		own = 0
	}
	switch {
	case u.Cost < own || u.Cost > max(own, c.Limit.Capacity()) || u.Max < u.Cost || u.Max > core.CountMax || u.Max == 0:
		return false
	case !lease.Allows(c.Limit, u.Max-u.Cost, u.ShareMille, u.Age) || u.Max > u.Cost && u.Age == 0:
		return false
	}
	q.lease.taken = append(q.lease.taken, taken{u.Check, own})
	c.Op, c.Cost, c.Min, c.Max, c.ShareMille = core.OpUpTo, u.Cost, max(1, own), u.Max, u.ShareMille
	if u.Max > u.Cost {
		c.Age = u.Age
	}
	if q.item.Kind == wire.KindFetch {
		c.OnError = core.OnErrorDeny // nobody waits for it, so nothing stands in for the store
	}
	return true
}

// results is where the store's answers to q.first go.
func (q *question) results() []core.Result {
	if q.item.Kind == wire.KindFetch {
		return q.lease.fetched[:]
	}
	return q.plan.Results()
}

// granted notes what was granted beyond the request's own cost, and makes its checks what the request asks again.
func (q *question) granted(err error) {
	checks, results := q.plan.Checks(), q.plan.Results()
	for _, t := range q.lease.taken {
		c, r := &checks[t.check], &results[t.check]
		if err == nil && !r.Local && r.Granted > t.own {
			if !r.Overflow { // that is a counter of others' too
				q.hand(t, c, r)
			}
			r.Granted = t.own
		}
		c.Op, c.Cost, c.Min, c.Max, c.ShareMille, c.Age = core.OpTake, t.own, 0, 0, 0, 0
	}
}

// hand hands out what a check was granted.
func (q *question) hand(t taken, c *core.Check, r *core.Result) {
	back := core.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Cost: r.Granted - t.own,
		Receipt: r.Receipt, Age: 1}
	if r.Granted > c.Cost {
		back.Age = c.Age
	}
	q.answer.Leases = append(q.answer.Leases, wire.Lease{Check: t.check, Granted: r.Granted, Receipt: r.Receipt,
		Token: q.bridge.sealer.sealUnits(&back, q.now)})
	q.bridge.metrics.unitsLeased.Add(float64(back.Cost))
}

// fetched answers what was asked in advance.
func (q *question) fetched(err error) {
	if err != nil {
		q.bridge.metrics.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc()
		if q.answer.Status = wire.StatusUnavailable; errors.Is(err, core.ErrOverloaded) {
			q.answer.Status = wire.StatusBusy
		}
		return
	}
	r := &q.lease.fetched[0]
	q.answer.Results = append(q.answer.Results[:0], *r)
	if r.Granted > 0 && !r.Overflow {
		q.hand(q.lease.taken[0], &q.lease.fetch[0], r)
	}
}

// takeBack takes back units that were not used. The answer says whether the receipt is good, and not what the store will
// make of it.
func (q *question) takeBack() {
	defer q.rescue()
	b, units := q.bridge, q.item.Return.Units
	opened, err := b.sealer.open(q.item.Return.Token, unitsForm, q.now)
	if err != nil {
		q.refuse(err.Error(), wire.StatusInvalid)
		return
	}
	back, err := core.ReadGiveBack(opened.plain)
	switch {
	case err != nil || units < 1 || units > back.Cost:
		err = errForeign
	case !b.sealer.redeem(&opened, q.now):
		err = errRedeemed
	}
	if err != nil {
		q.refuse(err.Error(), wire.StatusInvalid)
		return
	}
	back.Cost = units
	j := jobs.Get().(*job)
	j.due = []core.Check{back}
	if b.receiptsRoam {
		j.onlyOnce(&opened)
	}
	b.metrics.unitsReturned.Add(float64(units))
	if !b.settling.Send(j) {
		q.answer.Status = wire.StatusBusy
	}
}
