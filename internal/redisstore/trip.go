// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core"
)

// part is those checks of a call that are answered in one step: all of them, or in a cluster those of one slot, in a ring those of one server.
type part struct {
	place   int   // the slot of a cluster, the server's number in a ring
	places  []int // of the checks in the call; nil: they are all there are
	checks  []core.Check
	results []core.Result
	kept    bool // it is sent even if the caller leaves

	node    *node // whom to ask; nil: whoever counts there
	asking  bool
	call    *call    // on its way
	failure *Failure // nil, and not done: it is to be sent
	apart   *Failure // the last that said that one server has some of its keys and another one the others
	text    string   // the answer
	done    bool     // it was answered, or its failure stands
	divided bool     // it is done since others took its place
}

// trip is a call with its parts.
type trip struct {
	checks  []core.Check
	results []core.Result
	parts   []*part
}

// onePlace returns where checks are counted, and whether that is one place for all. Its number is a slot of the cluster, or that of
// a server in the ring.
func (s *Store) onePlace(checks []core.Check) (place int, one bool) {
	if s.cluster == nil && s.ring == nil {
		return 0, true
	}
	place = s.placeOf(checks[0].Key)
	for i := range checks[1:] {
		if s.placeOf(checks[1+i].Key) != place {
			return place, false
		}
	}
	return place, true
}

func (s *Store) placeOf(key []byte) int {
	slot := slotOf(key)
	if s.ring != nil {
		return int(s.ring.homes[slot])
	}
	return slot
}

// newTrip divides checks by place.
func (s *Store) newTrip(checks []core.Check, results []core.Result) *trip {
	t := &trip{checks: checks, results: results}
	if place, one := s.onePlace(checks); one {
		t.parts = []*part{{place: place, checks: checks, results: results}}
		return t
	}
	for i := range checks {
		place := s.placeOf(checks[i].Key)
		p := t.at(place)
		if p == nil {
			p = &part{place: place}
			t.parts = append(t.parts, p)
		}
		p.places = append(p.places, i)
	}
	for _, p := range t.parts {
		p.fill(checks)
	}
	return t
}

func (t *trip) at(place int) *part {
	for _, p := range t.parts {
		if p.place == place {
			return p
		}
	}
	return nil
}

// fill copies the checks of the part's places. A check whose penalty is in another part is told of none here. What is charged may
// come back, if another part refuses; what is leased comes back by its age.
func (p *part) fill(checks []core.Check) {
	p.checks = make([]core.Check, len(p.places))
	p.results = make([]core.Result, len(p.places))
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
		c.Refundable = c.Refundable || charges(&c) && c.Age == 0
		p.checks[to] = c
	}
}

// divide gives each check of a part one of its own: while a slot moves, a server can only be asked about one key it has not.
// The failure stays theirs until they are sent, for which there may be no time left.
func (t *trip) divide(p *part) {
	p.done, p.divided = true, true
	for i := range p.checks {
		place := i
		if p.places != nil {
			place = p.places[i]
		}
		single := &part{place: p.place, places: []int{place}, kept: p.kept, failure: p.failure, apart: p.failure}
		single.fill(t.checks)
		t.parts = append(t.parts, single)
	}
}

// nodeOf returns the server that counts at a place; nil if none is known.
func (s *Store) nodeOf(place int) *node {
	switch {
	case s.cluster != nil:
		return s.cluster.slots[place].Load()
	case s.ring != nil:
		return s.ring.nodes[place]
	}
	return s.only.Load()
}

// travel sends what is to be sent of trips until each part was answered or its failure stands, at the latest at the deadline.
// All parts are sent before the first is waited for. A part is sent again only after an answer that proves that it was not
// executed. What parts wait in queues does not count: the deadline that is returned is later by so much.
func (s *Store) travel(ctx context.Context, deadline time.Time, trips []*trip) time.Time {
	s.meet(ctx, deadline)
	for sent := 1; ; sent++ {
		s.sendAll(ctx, deadline, trips)
		pause, waited, again := time.Duration(0), time.Duration(0), false
		for _, t := range trips {
			for _, p := range t.parts {
				if p.done {
					continue
				}
				waited = max(waited, s.hear(ctx, p))
				wait, retry := s.judge(t, p, sent)
				pause, again = max(pause, wait), again || retry
			}
		}
		deadline = deadline.Add(waited)
		if !again || !s.rest(ctx, deadline, pause) {
			blameMoves(trips)
			return deadline
		}
		for _, t := range trips {
			for _, p := range t.parts {
				if !p.done {
					p.failure = nil
				}
			}
		}
	}
}

// blameMoves has parts that found their keys apart up to the end fail for that reason. The last of their trips may have ended by
// the deadline, or in the middle of the way back and forth between two servers, which says nothing of why.
func blameMoves(trips []*trip) {
	for _, t := range trips {
		for _, p := range t.parts {
			if p.failure == nil || p.apart == nil {
				continue
			}
			switch what, _ := p.failure.course(); {
			case what == courseApart, what == courseAsk, what == courseMoved, p.failure.Kind == KindTimeout:
				p.failure = &Failure{Kind: KindMoving, Cause: p.apart.Cause}
			}
		}
	}
}

// meet waits until the servers are known, or could not be found out.
func (s *Store) meet(ctx context.Context, deadline time.Time) {
	select {
	case <-s.asked:
		return
	default:
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.asked:
	case <-timer.C:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
}

// rest reports whether there is time left after a pause.
func (s *Store) rest(ctx context.Context, deadline time.Time, pause time.Duration) bool {
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

// sheaf is parts that go to one server in one pipeline.
type sheaf struct {
	node  *node
	parts []*part
}

// sendAll leaves what is to be sent to the servers' lanes, for each in as few pipelines as there can be.
func (s *Store) sendAll(ctx context.Context, deadline time.Time, trips []*trip) {
	var open []sheaf // the last one of each server
	for _, t := range trips {
		for _, p := range t.parts {
			if p.done || p.failure != nil || !s.prepare(ctx, p) {
				continue
			}
			at := slices.IndexFunc(open, func(b sheaf) bool { return b.node == p.node })
			switch {
			case at < 0:
				at = len(open)
				open = append(open, sheaf{node: p.node})
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

// prepare makes the call of a part and reports whether it is to be sent.
func (s *Store) prepare(ctx context.Context, p *part) bool {
	if p.node == nil {
		if p.node = s.nodeOf(p.place); p.node == nil {
			s.nudge() // someone may have it by now
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

// send leaves parts to their server's lanes. What is kept is waited for until the deadline, though it may be sent later.
func (s *Store) send(deadline time.Time, b sheaf) {
	patience := s.settings.queueWait
	if b.parts[0].kept {
		patience = max(1, time.Until(deadline))
	}
	b.node.enqueue(b.parts[0].call, patience)
}

// hear waits for the end of a part that was sent, and returns how long it was in the queue.
func (s *Store) hear(ctx context.Context, p *part) (waited time.Duration) {
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

// judge says whether a part is to be sent again, and after which pause.
func (s *Store) judge(t *trip, p *part, sent int) (pause time.Duration, again bool) {
	if p.failure == nil {
		p.done = true
		return 0, false
	}
	what, _ := p.failure.course()
	switch what {
	case courseApart:
		p.apart = p.failure
	case courseMoved, courseLater:
		if p.apart = nil; p.asking { // by who gives the keys away, to one who does not take them
			p.apart = p.failure
		}
	}
	if sent >= tripsMax {
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
