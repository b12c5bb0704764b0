// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// part holds the checks of a call that are answered in one step: all checks, those of one slot in a
// cluster, or those of one server in a ring.
type part struct {
	place   int   // slot in a cluster, or index of the server in a ring
	places  []int // indexes of the checks in the call; nil means all of them
	checks  []counter.Check
	results []counter.Result
	kept    bool // sent even if the caller leaves

	held    bool   // sent after other parts of the call
	learned bool   // the answer is remembered
	reads   bool   // charges nothing, because another part has denied the call
	record  record // what is remembered of the part's counters
	width   int64  // see narrowest

	node    *node // the server to which to send the part; nil means the server that has the counters
	asking  bool
	call    *call    // in flight
	failure *Failure // why the part failed; nil if it was answered, or was not sent yet
	apart   *Failure // the latest failure that was caused by keys that are split over two servers
	text    string   // the answer
	done    bool     // the part was answered, or its failure is final
	divided bool     // replaced by one part per check, and therefore done
}

// splitCall is a call whose checks concern several servers, with the part for each server.
type splitCall struct {
	checks  []counter.Check
	results []counter.Result
	parts   []*part
}

// onePlace returns the place of the checks and whether all of them share it. A place is a slot of
// the cluster, or the index of a server in the ring.
func (s *Store) onePlace(checks []counter.Check) (place int, one bool) {
	if s.cluster == nil && s.ring == nil {
		return 0, true
	}
	place = s.placeOf(checks[0].Key)
	for i := range checks {
		if s.placeOf(checks[i].Key) != place {
			return place, false
		}
		if _, moved := s.placeBefore(checks[i].Key); moved {
			return place, false
		}
	}
	return place, true
}

// placeBefore returns the place of a counter before the ring changed, and whether that place
// differs from the present one.
func (s *Store) placeBefore(key []byte) (place int, moved bool) {
	if s.ring == nil {
		return 0, false
	}
	return s.ring.homeBefore(slotOf(key))
}

func (s *Store) placeOf(key []byte) int {
	slot := slotOf(key)
	if s.ring != nil {
		return int(s.ring.homes[slot])
	}
	return slot
}

// valuePlaceOf returns the place of a value that is not a counter. While a ring changes, this is
// the previous place, where nodes that know only the previous ring find the value.
func (s *Store) valuePlaceOf(key []byte) int {
	if place, moved := s.placeBefore(key); moved {
		return place
	}
	return s.placeOf(key)
}

// newSplitCall groups checks by place.
func (s *Store) newSplitCall(checks []counter.Check, results []counter.Result) *splitCall {
	t := &splitCall{checks: checks, results: results}
	if place, one := s.onePlace(checks); one {
		t.parts = []*part{{place: place, checks: checks, results: results}}
		return t
	}
	for i := range checks {
		p := t.at(s.placeOf(checks[i].Key))
		p.places = append(p.places, i)
	}
	// The receipt of a check in two places is that of its first part (see stricter). So the parts
	// of the new places come first.
	for i := range checks {
		if place, moved := s.placeBefore(checks[i].Key); moved {
			p := t.at(place)
			p.places = append(p.places, i)
		}
	}
	for _, p := range t.parts {
		p.fill(checks)
		for i := range p.checks {
			if _, moved := s.placeBefore(p.checks[i].Key); moved {
				chargeOneNumber(&p.checks[i])
			}
		}
	}
	s.holdBack(t)
	return t
}

// chargeOneNumber changes a check that charges up to the units left (OpUpTo), so that it charges a
// fixed number or nothing. Two servers charge this check, and they may have different numbers of
// units left.
func chargeOneNumber(c *counter.Check) {
	if c.Op != counter.OpUpTo {
		return
	}
	if c.Cost > 0 {
		c.Min, c.Max = c.Cost, c.Cost
	} else {
		c.Max = c.Min
	}
}

// splitCall.at returns the part of the call for the given place. If there is none yet, it adds one.
func (t *splitCall) at(place int) *part {
	for _, p := range t.parts {
		if p.place == place {
			return p
		}
	}
	p := &part{place: place}
	t.parts = append(t.parts, p)
	return p
}

// part.fill copies the checks of the part. A check whose penalty is in another part loses its
// reference to the penalty. Charges become refundable, because another part might deny the call.
// Charges of leases stay as they are, because their units are refunded by age.
func (p *part) fill(checks []counter.Check) {
	p.checks = make([]counter.Check, len(p.places))
	p.results = make([]counter.Result, len(p.places))
	for to, from := range p.places {
		c := checks[from]
		if guard := c.Guard; guard != 0 {
			c.Guard = 0
			for i, place := range p.places {
				if place == guard-1 {
					c.Guard = i + 1
				}
			}
			if c.Guard == 0 {
				c.Violation = 0
			}
		}
		c.Refundable = c.Refundable || chargesIfAllowed(&c) && c.Age == 0
		p.checks[to] = c
	}
}

// splitCall.divide replaces a part with one part per check, because while a slot moves, a call
// about several keys fails unless one server has all of them. The new parts keep the failure until
// they are sent, because there might not be enough time left to send them.
func (t *splitCall) divide(p *part) {
	p.done, p.divided = true, true
	for i := range p.checks {
		place := i
		if p.places != nil {
			place = p.places[i]
		}
		single := &part{place: p.place, places: []int{place}, kept: p.kept, failure: p.failure, apart: p.failure}
		if single.fill(t.checks); p.reads {
			single.chargeNothing()
		}
		t.parts = append(t.parts, single)
	}
}

// nodeOf returns the server that has the counters of a place, or nil if none is known.
func (s *Store) nodeOf(place int) *node {
	switch {
	case s.cluster != nil:
		return s.cluster.slots[place].Load()
	case s.ring != nil:
		return s.ring.nodes[place]
	}
	return s.only.Load()
}

// sendUntilDone sends the pending parts of the calls, but no part that is held back. It returns
// when each of these parts has been answered or has finally failed, at the latest at the deadline.
// It sends all parts before it waits for the first answer. It resends a part only after an answer
// that proves that the part was not executed. Time in queues does not count, so the returned
// deadline is later by that amount.
func (s *Store) sendUntilDone(ctx context.Context, deadline time.Time, splitCalls []*splitCall) time.Time {
	s.awaitDiscovery(ctx, deadline)
	for sent := 1; ; sent++ {
		s.sendAll(ctx, deadline, splitCalls)
		pause, waited, again := time.Duration(0), time.Duration(0), false
		for _, t := range splitCalls {
			for _, p := range t.parts {
				if p.done || p.held {
					continue
				}
				waited = max(waited, s.awaitPart(ctx, p))
				wait, retry := s.decideResend(t, p, sent)
				pause, again = max(pause, wait), again || retry
			}
		}
		deadline = deadline.Add(waited)
		if !again || !s.pauseFor(ctx, deadline, pause) {
			s.reportMoves(splitCalls)
			return deadline
		}
		for _, t := range splitCalls {
			for _, p := range t.parts {
				if !p.done {
					p.failure = nil
				}
			}
		}
	}
}

// reportMoves sets the final failure of parts whose slot was still moving at the end. Without it,
// such a part would fail with a missed deadline, or with one of the redirects back and forth
// between the two servers. Neither would explain the cause.
func (s *Store) reportMoves(splitCalls []*splitCall) {
	if s.cluster == nil {
		return // a redirect then shows that the mode is wrong
	}
	for _, t := range splitCalls {
		for _, p := range t.parts {
			if p.failure == nil {
				continue
			}
			redirected := p.isRedirected()
			switch {
			case redirected && p.apart == nil:
				p.failure = &Failure{Kind: KindMoving, Cause: p.failure.Cause, unsent: true}
			case p.apart != nil && (redirected || p.failure.Kind == KindTimeout):
				p.failure = &Failure{Kind: KindMoving, Cause: p.apart.Cause, unsent: redirected}
			}
		}
	}
}

// awaitDiscovery waits for the first round of discovery, even a failed one.
func (s *Store) awaitDiscovery(ctx context.Context, deadline time.Time) {
	select {
	case <-s.discovered:
		return
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.discovered:
	case <-timer.C:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
}

// isRedirected reports whether the last answer to the part, an error, shows that its slot moves.
func (p *part) isRedirected() bool {
	switch what, text := p.failure.course(); what {
	case courseApart:
		return true
	case courseMoved, courseAsk:
		slot, _, ok := parseRedirection(text, "")
		return ok && slot == p.place
	}
	return false
}

// pauseFor pauses and reports whether there is time left afterwards.
func (s *Store) pauseFor(ctx context.Context, deadline time.Time, pause time.Duration) bool {
	if time.Until(deadline) <= pause {
		return false
	}
	if pause == 0 {
		return true
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return false
}

// nodeBatch holds the parts to send to one server in one pipeline.
type nodeBatch struct {
	node  *node
	parts []*part
}

// sendAll enqueues the pending parts at their servers, in as few pipelines per server as possible.
func (s *Store) sendAll(ctx context.Context, deadline time.Time, splitCalls []*splitCall) {
	var open []nodeBatch // the last batch of each server
	for _, t := range splitCalls {
		for _, p := range t.parts {
			if p.done || p.held || p.failure != nil || !s.prepare(ctx, p) {
				continue
			}
			at := slices.IndexFunc(open, func(b nodeBatch) bool { return b.node == p.node })
			switch {
			case at < 0:
				at = len(open)
				open = append(open, nodeBatch{node: p.node})
			case len(open[at].parts) == batchMax:
				s.send(deadline, open[at])
				open[at].parts = open[at].parts[:0]
			default:
				open[at].parts[len(open[at].parts)-1].call.next = p.call
			}
			open[at].parts = append(open[at].parts, p)
		}
	}
	for _, b := range open {
		s.send(deadline, b)
	}
}

// Store.prepare creates the call of a part and reports whether the call must be sent.
func (s *Store) prepare(ctx context.Context, p *part) bool {
	if p.node == nil {
		if p.node = s.nodeOf(p.place); p.node == nil {
			s.rediscover() // a server might have taken over the place in the meantime
			p.failure = s.unknown()
			return false
		}
	}
	if p.kept {
		ctx = context.WithoutCancel(ctx)
	}
	if p.call, p.failure = p.node.admit(ctx, p.checks); p.failure != nil {
		return false
	}
	p.call.asking, p.call.kept = p.asking, p.kept
	return true
}

// Store.send enqueues parts at their server. The caller waits for a kept part until the deadline;
// the part can be sent even later.
func (s *Store) send(deadline time.Time, b nodeBatch) {
	patience := s.settings.queueWait
	if b.parts[0].kept {
		patience = max(1, time.Until(deadline))
	}
	b.node.enqueue(b.parts[0].call, patience)
}

// awaitPart waits for the end of a part that was sent, and returns how long it was in the queue.
func (s *Store) awaitPart(ctx context.Context, p *part) (waited time.Duration) {
	c := p.call
	if c == nil {
		return 0
	}
	p.call = nil
	if waited, p.failure = p.node.wait(ctx, c); p.failure != nil {
		return waited
	}
	p.text = c.cmd.Val()
	p.failure = p.node.read(c, p.checks, p.results)
	return waited
}

// decideResend determines whether to resend a part, and after which pause.
func (s *Store) decideResend(t *splitCall, p *part, sent int) (pause time.Duration, again bool) {
	if p.failure == nil {
		p.done = true
		return 0, false
	}
	what, _ := p.failure.course()
	switch what {
	case courseApart:
		p.apart = p.failure
	case courseMoved, courseLater:
		// If asking is set, the slot's server redirected the part to a server that does not import
		// the keys.
		if p.apart = nil; p.asking {
			p.apart = p.failure
		}
	}
	if sent >= sendsMax {
		p.done = true
		return 0, false
	}
	if what == courseApart && len(p.checks) > 1 && s.cluster != nil {
		t.divide(p)
		return pauseMin, true
	}
	pause, again = s.redirect(p, sent)
	p.done = !again
	return pause, again
}
