// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/penstock/penstock/core"
)

// conclude makes one answer of the parts of each trip. What is to be given back for all of them goes out together, before the
// callers go on if the deadline allows.
func (s *Store) conclude(ctx context.Context, deadline time.Time, trips []*trip, failed func(i int, failure *Failure)) {
	var backs []*trip
	for i, t := range trips {
		back, failure := s.arrive(t)
		if back != nil {
			backs = append(backs, back)
		}
		failed(i, failure)
	}
	if len(backs) > 0 {
		s.travel(ctx, deadline, backs)
	}
}

// arrive makes one answer of a trip's parts: all that is to be charged was, or nothing is. What the parts of a refused call
// have charged is to be given back by receipt; so it is when a part failed. Of a part of which it is not known whether it was
// executed nothing is given back.
func (s *Store) arrive(t *trip) (back *trip, failure *Failure) {
	if len(t.parts) == 1 {
		return nil, t.parts[0].failure
	}
	refused := false
	for _, p := range t.parts {
		switch {
		case p.divided:
		case p.failure != nil:
			if failure == nil || !failure.overload() { // a client can bring that about: it is refused
				failure = p.failure
			}
		default:
			for i := range p.checks {
				refused = refused || refuses(&p.checks[i], &p.results[i])
			}
		}
	}
	if failure != nil || refused {
		back = t.withdraw()
	}
	if failure != nil {
		return back, failure
	}
	for _, p := range t.parts {
		for i, place := range p.places {
			if !p.divided {
				t.results[place] = p.results[i]
			}
		}
	}
	if refused {
		s.tellPenalties(t)
	}
	return back, nil
}

// refuses reports whether the answer to a check refuses the call.
func refuses(c *core.Check, r *core.Result) bool {
	return r.Refused && !c.Shadow && charges(c)
}

// charges reports whether a check charges only a call that is admitted.
func charges(c *core.Check) bool { return c.Op == core.OpTake || c.Op == core.OpUpTo }

// withdraw returns what gives back all that the parts have charged, nil if that is nothing, and makes their results those of a
// refused call.
func (t *trip) withdraw() *trip {
	back := &trip{}
	for _, p := range t.parts {
		if p.divided || p.failure != nil {
			continue
		}
		returned := &part{place: p.place, kept: true}
		for i := range p.checks {
			c, r := &p.checks[i], &p.results[i]
			age := c.Age
			if age > 0 && r.Granted <= c.Cost {
				age = 1 // no lease: see core.Check
			}
			if charges(c) && r.Granted > 0 {
				returned.checks = append(returned.checks, core.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit,
					Op: core.OpGiveBack, Cost: r.Granted, Receipt: r.Receipt, Bounds: c.Bounds, Age: age, Refundable: c.Refundable})
				returned.places = append(returned.places, len(back.checks))
				back.checks = append(back.checks, returned.checks[len(returned.checks)-1])
			}
		}
		if len(returned.checks) == 0 {
			continue
		}
		returned.results = make([]core.Result, len(returned.checks))
		back.parts = append(back.parts, returned)
		if err := decode(p.text, p.checks, p.results, true); err != nil {
			p.failure = &Failure{Kind: KindScript, Cause: err} // it was read before: this cannot be
		}
	}
	if len(back.parts) == 0 {
		return nil
	}
	return back
}

// tellPenalties records violations that could not be recorded in the step that found them, since the penalty is in another
// slot: in a call of its own, for which nobody waits. So it is recorded a little later, and a penalty that it brings begins
// with the next request. If the call is lost, so is the violation, which errs on the client's side.
func (s *Store) tellPenalties(t *trip) {
	for i := range t.checks {
		if p := &t.checks[i]; p.Penalty != nil && p.Op == core.OpTake {
			if refusals := t.untold(i + 1); len(refusals) > 0 {
				s.tell(p, refusals)
			}
		}
	}
}

// untold returns the refusals that count in the record of check number guard, counted from 1, and were given by another part;
// none if a penalty refuses the call.
func (t *trip) untold(guard int) (refusals []refusal) {
	home := t.partOf(guard - 1)
	for i := range t.checks {
		c, r := &t.checks[i], &t.results[i]
		switch {
		case c.Penalty != nil && refuses(c, r):
			return nil
		case c.Guard == guard && refuses(c, r) && r.Wait != core.Never && t.partOf(i) != home:
			refusals = append(refusals, refusal{r.Wait, c.Violation})
		}
	}
	return refusals
}

// partOf returns the part that answered a check.
func (t *trip) partOf(check int) *part {
	for _, p := range t.parts {
		if !p.divided && slices.Contains(p.places, check) {
			return p
		}
	}
	return nil
}

// tell sends what nobody waits for.
func (s *Store) tell(check *core.Check, refusals []refusal) {
	n := s.nodeOf(s.placeOf(check.Key))
	if n == nil {
		return
	}
	c, failure := n.admit(context.Background(), nil)
	if failure != nil {
		return
	}
	c.cmd = newViolations(context.Background(), core.Micros(s.pinned.Load()), check, refusals)
	c.kept, c.source = true, sourceOf(check)
	n.enqueue(c, 0)
}
