// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/lease"
)

// A filter may lease units of a limit and admit requests from them without a call. The limit and
// its key follow from the request that the filter describes; the filter chooses only the number of
// units. The bridge grants at most a node's share, and no units of limits that the rule does not
// lease.
//
// A filter need not prove how it used leased units: the filter itself blocks requests, so it could
// admit any request without the bridge in any case. A refund is different, because it lets a client
// use more units. So a refund needs a receipt that the bridge has sealed. The receipt is valid
// once, for at most the units that were granted.

// leaseUnits holds the units that a question asks for in addition to its request's cost.
type leaseUnits struct {
	taken   []takenCheck
	fetch   [1]counter.Check // the check of a question of KindFetch
	fetched [1]counter.Result
}

// takenCheck is a check that takes more than its request's cost.
type takenCheck struct {
	check int
	own   int64
}

// question.leases changes the checks of a question to ask for the units that the filter wants. If
// the filter has the wrong client for the request, because the state of the credentials has
// changed, no units are leased. The verdict then gives the filter the right client.
func (q *question) leases() {
	checks, fetches := q.plan.Checks(), q.item.Kind == wire.KindFetch
	if _, admits := q.plan.LocalDecision(); !admits {
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

// question.wants changes a check so that it asks for the units that the filter wants. The result is
// false if the check may not be leased.
func (q *question) wants(u *wire.Units, c *counter.Check) bool {
	own := c.Cost
	if q.item.Kind == wire.KindFetch {
		own = 0
	}
	switch {
	case u.Cost < own || u.Cost > max(own, c.Limit.Capacity()) || u.Max < u.Cost || u.Max > counter.CountMax || u.Max == 0:
		return false
	case !lease.Allows(c.Limit, u.Max-u.Cost, u.ShareMille, u.Age) || u.Max > u.Cost && u.Age == 0:
		return false
	}
	q.lease.taken = append(q.lease.taken, takenCheck{u.Check, own})
	c.Op, c.Cost, c.Min, c.Max, c.ShareMille = counter.OpUpTo, u.Cost, max(1, own), u.Max, u.ShareMille
	if u.Max > u.Cost {
		c.Age = u.Age
	}
	if q.item.Kind == wire.KindFetch {
		c.OnError = counter.OnErrorDeny // no request waits for these units, so on_error does not apply
	}
	return true
}

// question.results returns the memory for the store's answers to q.first.
func (q *question) results() []counter.Result {
	if q.item.Kind == wire.KindFetch {
		return q.lease.fetched[:]
	}
	return q.plan.Results()
}

// question.granted records the units granted beyond the request's own cost, and restores
// the checks for the request's next call.
func (q *question) granted(err error) {
	checks, results := q.plan.Checks(), q.plan.Results()
	for _, t := range q.lease.taken {
		c, r := &checks[t.check], &results[t.check]
		if err == nil && !r.Local && r.Granted > t.own {
			if !r.Overflow { // other clients share the overflow counter
				q.handOut(t, c, r)
			}
			r.Granted = t.own
		}
		c.Op, c.Cost, c.Min, c.Max, c.ShareMille, c.Age = counter.OpTake, t.own, 0, 0, 0, 0
	}
}

// handOut adds to the question's answer the units that a check was granted.
func (q *question) handOut(t takenCheck, c *counter.Check, r *counter.Result) {
	back := counter.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit, Bounds: c.Bounds, Cost: r.Granted - t.own,
		Receipt: r.Receipt, Age: 1}
	if r.Granted > c.Cost {
		back.Age = c.Age
	}
	q.answer.Leases = append(q.answer.Leases, wire.Lease{Check: t.check, Granted: r.Granted, Receipt: r.Receipt,
		Token: q.bridge.sealer.sealUnits(&back, q.now)})
	q.bridge.metrics.unitsLeased.Add(float64(back.Cost))
}

// question.fetched answers a question that only leases units.
func (q *question) fetched(err error) {
	if err != nil {
		if q.answer.Status = wire.StatusUnavailable; core.Overloads(err) {
			q.answer.Status = wire.StatusBusy
		}
		return
	}
	r := &q.lease.fetched[0]
	q.answer.Results = append(q.answer.Results[:0], *r)
	if r.Granted > 0 && !r.Overflow {
		q.handOut(q.lease.taken[0], &q.lease.fetch[0], r)
	}
}

// takeBack refunds unused units. The answer reports whether the receipt is valid; the store is
// called later.
func (q *question) takeBack() {
	defer q.rescue()
	b, units := q.bridge, q.item.Refund.Units
	opened, err := b.sealer.open(q.item.Refund.Token, unitsForm, q.now)
	if err != nil {
		q.reject(err.Error(), wire.StatusInvalid)
		return
	}
	back, err := compact.ReadRefund(opened.plain)
	switch {
	case err != nil || units < 1 || units > back.Cost:
		err = errForeign
	case !b.sealer.redeem(&opened, q.now):
		err = errRedeemed
	}
	if err != nil {
		q.reject(err.Error(), wire.StatusInvalid)
		return
	}
	back.Cost = units
	j := jobs.Get().(*job)
	j.due = []counter.Check{back}
	if b.receiptsRoam {
		j.onlyOnce(&opened)
	}
	b.metrics.unitsReturned.Add(float64(units))
	if !b.settling.Send(j) {
		q.answer.Status = wire.StatusBusy
	}
}
