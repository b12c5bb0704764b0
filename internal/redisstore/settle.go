// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"time"

	"github.com/penstock/penstock/core"
)

// arrive makes one answer of a trip's parts: all that is to be charged was, or nothing is. What the parts of a refused call
// have charged is given back by receipt, before the caller goes on if his deadline allows; so it is when a part failed. Of a
// part of which it is not known whether it was executed nothing is given back.
func (s *Store) arrive(ctx context.Context, deadline time.Time, t *trip) *Failure {
	if len(t.parts) == 1 {
		return t.parts[0].failure
	}
	var failure *Failure
	refused := false
	for _, p := range t.parts {
		switch {
		case p.divided:
		case p.failure != nil:
			failure = p.failure
		default:
			for i := range p.checks {
				refused = refused || refuses(&p.checks[i], &p.results[i])
			}
		}
	}
	if failure != nil || refused {
		s.withdraw(ctx, deadline, t)
	}
	if failure != nil {
		return failure
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
	return nil
}

// refuses reports whether the answer to a check refuses the call.
func refuses(c *core.Check, r *core.Result) bool {
	return r.Refused && !c.Shadow && charges(c)
}

// charges reports whether a check charges only a call that is admitted.
func charges(c *core.Check) bool { return c.Op == core.OpTake || c.Op == core.OpUpTo }

// withdraw gives back what the parts have charged, and makes their results those of a refused call.
func (s *Store) withdraw(ctx context.Context, deadline time.Time, t *trip) {
	back := &trip{}
	for _, p := range t.parts {
		if p.divided || p.failure != nil {
			continue
		}
		returned := &part{slot: p.slot, kept: true}
		for i := range p.checks {
			c, r := &p.checks[i], &p.results[i]
			if charges(c) && r.Granted > 0 {
				returned.checks = append(returned.checks, core.Check{Key: c.Key, ScopeLen: c.ScopeLen, Limit: c.Limit,
					Op: core.OpGiveBack, Cost: r.Granted, Receipt: r.Receipt, Bounds: c.Bounds})
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
	if len(back.parts) > 0 {
		s.travel(ctx, deadline, []*trip{back})
	}
}

// tellPenalties records what could not be recorded in one step.
func (s *Store) tellPenalties(*trip) {}
