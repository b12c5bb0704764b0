// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// mergeAll merges the answers to the parts of each call. mergeAll sends the refunds of all calls
// together, and waits for the answers if the deadline allows.
func (s *Store) mergeAll(ctx context.Context, deadline time.Time, splitCalls []*splitCall, failed func(i int, failure *Failure)) {
	var refunds []*splitCall
	for i, t := range splitCalls {
		refund, failure := s.merge(t)
		if refund != nil {
			refunds = append(refunds, refund)
		}
		failed(i, failure)
	}
	if len(refunds) > 0 {
		s.sendUntilDone(ctx, deadline, refunds)
	}
}

// Store.merge combines the answers to a call's parts, so that either all charges remain or none. If
// the call was denied or a part failed, the result named refund is a call that refunds, by receipt,
// the charges of the other parts. A part that might or might not have been executed is not
// refunded.
func (s *Store) merge(t *splitCall) (refund *splitCall, failure *Failure) {
	if len(t.parts) == 1 {
		return nil, t.parts[0].failure
	}
	denied, unsent := false, true
	for _, p := range t.parts {
		switch {
		case p.divided || p.held: // not sent
		case p.failure != nil:
			unsent = unsent && p.failure.Unsent()
			// An overload takes precedence, because a client can cause it.
			if failure == nil || !failure.overload() {
				failure = p.failure
			}
		default:
			for i := range p.checks {
				denied = denied || denies(&p.checks[i], &p.results[i])
				unsent = unsent && !remains(&p.checks[i])
			}
		}
	}
	if failure != nil || denied {
		refund = t.newRefund()
	}
	if failure != nil {
		return refund, failure.ofCall(unsent)
	}
	t.collect()
	if denied {
		s.recordDenials(t)
	}
	return refund, nil
}

// splitCall.collect copies the results of the parts. A check in two parts has the stricter of two
// results.
func (t *splitCall) collect() {
	var seen [counter.ChecksMax]bool
	for _, p := range t.parts {
		if p.divided {
			continue
		}
		for i, place := range p.places {
			if seen[place] {
				stricter(&t.results[place], &p.results[i])
				continue
			}
			t.results[place], seen[place] = p.results[i], true
		}
	}
}

// stricter restricts a result to what another result for the same check allows as well. The receipt
// is unchanged. The receipt may name a charge that only one of the two servers has; a refund
// restores nothing on the other server.
func stricter(r, other *counter.Result) {
	r.Denied = r.Denied || other.Denied
	r.Overflow = r.Overflow || other.Overflow
	r.Granted, r.Remaining = min(r.Granted, other.Granted), min(r.Remaining, other.Remaining)
	r.Wait, r.Reset, r.Next = max(r.Wait, other.Wait), max(r.Reset, other.Reset), max(r.Next, other.Next)
	r.LeasedIn, r.Violations = max(r.LeasedIn, other.LeasedIn), max(r.Violations, other.Violations)
}

// denies reports whether the result of a check denies the call.
func denies(c *counter.Check, r *counter.Result) bool {
	return r.Denied && mayDeny(c)
}

// mayDeny reports whether a check can deny the call.
func mayDeny(c *counter.Check) bool { return chargesIfAllowed(c) && !c.Shadow }

// chargesIfAllowed reports whether a check charges only if the call is allowed.
func chargesIfAllowed(c *counter.Check) bool { return c.Op == counter.OpTake || c.Op == counter.OpUpTo }

// remains reports whether the effect of a check remains if another part of its call fails. Only the
// effects of refunds, forced charges and resets remain; other charges are refunded.
func remains(c *counter.Check) bool {
	return c.Op == counter.OpRefund || c.Op == counter.OpForce || c.Op == counter.OpReset
}

// newRefund returns a call that refunds all charges of the parts, or nil if they charged nothing.
// newRefund changes the parts' results to those of a denied call.
func (t *splitCall) newRefund() *splitCall {
	refund := &splitCall{}
	for _, p := range t.parts {
		if p.divided || p.failure != nil {
			continue
		}
		returned := &part{place: p.place, kept: true}
		for i := range p.checks {
			c, r := &p.checks[i], &p.results[i]
			age := c.Age
			if age > 0 && r.Granted <= c.Cost {
				age = 1 // not leased, so the bucket has reserved nothing for the units
			}
			if chargesIfAllowed(c) && r.Granted > 0 {
				returned.checks = append(returned.checks, counter.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit,
					Op: counter.OpRefund, Cost: r.Granted, Receipt: r.Receipt, Bounds: c.Bounds, Age: age, Refundable: c.Refundable})
				returned.places = append(returned.places, len(refund.checks))
				refund.checks = append(refund.checks, returned.checks[len(returned.checks)-1])
			}
		}
		if len(returned.checks) == 0 {
			continue
		}
		returned.results = make([]counter.Result, len(returned.checks))
		refund.parts = append(refund.parts, returned)
		if err := decode(p.text, p.checks, p.results, true); err != nil {
			// This is unreachable, because the reply was decoded before.
			p.failure = &Failure{Kind: KindScript, Cause: err}
		}
	}
	if len(refund.parts) == 0 {
		return nil
	}
	return refund
}

// recordDenials records violations that the denying steps could not record, because the penalty is
// also, or only, on another server. recordDenials uses a separate call for each server and does not
// wait for it. A penalty that the violation causes therefore starts with a later request. If the
// call is lost, the violation is lost too, in the client's favor.
func (s *Store) recordDenials(t *splitCall) {
	for i := range t.checks {
		if c := &t.checks[i]; c.Penalty == nil || c.Op != counter.OpTake {
			continue
		}
		for _, p := range t.parts {
			if p.divided || p.indexOf(i) < 0 {
				continue
			}
			if denials := t.denialsToRecord(i+1, p); len(denials) > 0 {
				s.sendDenials(p.place, &t.checks[i], denials)
			}
		}
	}
}

// denialsToRecord returns the denials that must be reported to a penalty in a part: the denials
// that the part itself did not find. The argument named guard is the position of the penalty's
// check, counted from 1. If a penalty denies the call, the function returns none.
func (t *splitCall) denialsToRecord(guard int, home *part) (denials []denial) {
	for i := range t.checks {
		c, r := &t.checks[i], &t.results[i]
		switch {
		case c.Penalty != nil && denies(c, r):
			return nil
		case c.Guard == guard && denies(c, r) && r.Wait != counter.Never && !home.finds(i):
			denials = append(denials, denial{r.Wait, c.Violation})
		}
	}
	return denials
}

// indexOf returns the index that a check of the call has in the part, or -1 if the part does not
// contain the check.
func (p *part) indexOf(check int) int { return slices.Index(p.places, check) }

// part.finds reports whether the part contains a check of the call, and the part's server
// denied the check.
func (p *part) finds(check int) bool {
	i := p.indexOf(check)
	return i >= 0 && denies(&p.checks[i], &p.results[i])
}

// sendDenials sends the denials to a server of a penalty without waiting for the answer.
func (s *Store) sendDenials(place int, check *counter.Check, denials []denial) {
	n := s.nodeOf(place)
	if n == nil {
		return
	}
	c, failure := n.admit(context.Background(), nil)
	if failure != nil {
		return
	}
	c.cmd = newViolations(context.Background(), counter.Micros(s.pinned.Load()), check, denials)
	c.kept, c.source = true, sourceOf(check)
	n.enqueue(c, 0)
}
