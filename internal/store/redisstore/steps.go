// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"math"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// The parts of a call are sent at the same time. So a call that one part denies is charged at the
// other servers until its refunds arrive. A client that sends many requests above its own limit
// could thereby fill a counter that it shares with others, whose requests would be denied.
// Therefore a part with a counter that has denied calls recently is sent first. The other parts are
// sent when that part has admitted the call. If that part denies the call, the other parts are sent
// too, but charge nothing.

// sendInSteps sends the calls like [Store.sendUntilDone], and then the parts that were held back.
func (s *Store) sendInSteps(ctx context.Context, deadline time.Time, splitCalls []*splitCall) time.Time {
	for again := true; again; {
		deadline = s.sendUntilDone(ctx, deadline, splitCalls)
		again = false
		for _, t := range splitCalls {
			again = s.nextStep(t) || again
		}
	}
	return deadline
}

// nextStep is called when all parts of a call that have been sent are done. If parts were held
// back, nextStep prepares them for sending, and returns true. If a part has failed, the parts that
// were held back are not sent, and nextStep returns false.
func (s *Store) nextStep(t *splitCall) (again bool) {
	if len(t.parts) == 1 {
		return false
	}
	held, denied, failed := false, false, false
	for _, p := range t.parts {
		switch {
		case p.held:
			held = true
		case p.failure != nil:
			failed = true
		case !p.divided && !p.learned:
			p.learned = true
			denied = s.recent.learn(s.clock(), p) || denied
		}
	}
	switch {
	case !held || failed:
		return false
	case !denied:
		t.release()
		return true
	}
	for _, p := range t.parts {
		if p.held {
			p.held = false
			p.chargeNothing()
		}
	}
	return true
}

// holdBack holds back the parts of a call that must be sent after other parts of the call.
func (s *Store) holdBack(t *splitCall) {
	now, known := s.clock(), false
	for _, p := range t.parts {
		p.record, p.width = s.recent.recordOf(now, p), p.narrowest()
		known = known || p.record != clean
	}
	if !known {
		return
	}
	for _, p := range t.parts {
		p.held = true
	}
	t.release()
}

// splitCall.release selects the parts to send next: one part whose counters have denied calls
// recently, or all parts that are left if there is no such part. Of several such parts, one that
// still denies comes first, and then the part that admits the fewest calls, because the limits of a
// single client are usually smaller than those that clients share. The part that admits the most
// calls is not sent ahead, unless it still denies.
func (t *splitCall) release() {
	var first *part
	widest := int64(0)
	for _, p := range t.parts {
		if !p.held {
			continue
		}
		widest = max(widest, p.width)
		if first == nil || p.record > first.record || p.record == first.record && p.width < first.width {
			first = p
		}
	}
	alone := first.record == stillDenies || first.record == hasDenied && first.width < widest
	for _, p := range t.parts {
		p.held = p.held && alone && p != first
	}
}

// part.narrowest returns the greatest number of calls that the narrowest of the part's counters can
// admit.
func (p *part) narrowest() int64 {
	fewest := int64(math.MaxInt64)
	for i := range p.checks {
		if c := &p.checks[i]; c.Limit != nil && mayDeny(c) {
			fewest = min(fewest, c.Limit.Capacity()/max(1, c.Cost))
		}
	}
	return fewest
}

// part.chargeNothing changes the part of a denied call so that it only reads its counters. The
// results are the same as if all checks had been denied in one step.
func (p *part) chargeNothing() {
	p.reads = true
	for i := range p.checks {
		c := &p.checks[i]
		if c.Limit == nil || !chargesIfAllowed(c) {
			continue
		}
		if c.Op == counter.OpUpTo {
			c.Cost, c.Min, c.Max, c.ShareMille, c.Age = c.Min, 0, 0, 0, 0
		}
		c.Op, c.Refundable = counter.OpLook, false
	}
}
