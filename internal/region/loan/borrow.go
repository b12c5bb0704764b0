// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// Agent.borrow restores the units that the agent holds. If these will not last, it asks all other
// regions, and restores what they lend. It returns the number of restored units, which is 0 if this
// region must not use any.
func (a *Agent) borrow(ctx context.Context, q *Question, r *round) int64 {
	if a.isShut(ctx, q) {
		return 0
	}
	s := a.restoreHeld(ctx, q, r)
	p, key := a.pauseOf(q)
	if s.lasts && (!q.Short || s.restored >= max(r.need.Load(), q.Part/littleParts)) {
		return max(1, s.restored)
	}
	if ask, vain := p.farEnds(key, time.Now(), q.Short); !ask && vain {
		return s.restored
	} else if !ask {
		return max(1, s.restored)
	}
	most := int64(0)
	if whole, err := counter.ParseLimit(q.Limit); err == nil {
		most = mayHold(&whole, q)
	}
	sent := a.ahead(ctx, q, &s, most)
	if sent == nil {
		return max(1, s.restored)
	}
	a.counts.questions.Add(1)
	var units atomic.Int64
	var asking sync.WaitGroup
	for _, peer := range a.lenders() {
		asking.Go(func() { units.Add(a.borrowOf(ctx, peer, q, sent, most, r)) })
	}
	asking.Wait()
	p.farBegins(key, time.Now(), units.Load() > 0 || r.back.Load() || r.need.Load() > 0 && r.moving.Load(), q.Short)
	a.deem(q, r, s.restored+units.Load())
	return s.restored + units.Load()
}

// Agent.isShut reports whether this region must not use its part of a question's limit in the
// present window, because it was written off, or was taken back only a short time ago. This region
// could not use borrowed units either, and the lenders would lose them.
func (a *Agent) isShut(ctx context.Context, q *Question) bool {
	e, _ := a.entry(a.o.Name)
	if a.o.Writeoffs == nil || e.Generation == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	own := a.o.Policy()
	allowed, err := a.allowed(ctx, &own, &lending{here: own.Here, entry: e, read: time.Now(), q: q})
	return err != nil || !allowed
}

// Agent.borrowOf asks another region for units. It returns how many of them it has restored or
// holds.
func (a *Agent) borrowOf(ctx context.Context, peer *Peer, q, sent *Question, most int64, r *round) int64 {
	asked, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	l, err := peer.ask(asked, sent)
	if err == nil && l.Moving {
		r.moving.Store(true)
	}
	if err != nil {
		return 0
	}
	return a.receive(context.WithoutCancel(ctx), peer, q, l, most, r)
}

// Agent.receive restores units that another region has lent or sends back, and holds the units that
// cannot be restored yet. It returns the number of units that were restored or are held.
func (a *Agent) receive(ctx context.Context, peer *Peer, q *Question, l Loan, most int64, r *round) int64 {
	back := a.takeRecalled(ctx, q, l.Back, r)
	if l.Units+l.Later == 0 {
		return back
	}
	r.lent.Add(l.Units)
	restored, rest, err := back, int64(0), error(nil)
	if l.Units > 0 {
		restored, rest, err = a.restoreParts(ctx, q, l, r)
		restored += back
	}
	if err != nil {
		rest += l.Later
		a.counts.lost.Add(uint64(rest))
		a.o.Logger.Warn("borrowed units could not be restored, and are lost until their window ends", "region", peer.Name,
			"units", rest, "error", err)
		return restored
	}
	later := Loan{ID: l.ID, Units: rest, Receipt: l.Receipt, At: l.At, Later: l.Later, From: l.From, Full: l.Full}
	if rest > 0 {
		r.back.Store(true)
	}
	if rest += l.Later; rest == 0 || a.holdLater(ctx, q, peer, later, most) {
		return restored + rest
	}
	a.giveBack(ctx, peer, q, Loan{ID: l.ID, Units: rest, Receipt: l.Receipt})
	return restored
}

// Agent.holdLater holds the units of a loan that could not be restored yet, if the agent has room
// for the loan. If the limit or the shares have changed, the agent also returns to the lenders what
// it still holds under the previous limit or shares.
func (a *Agent) holdLater(ctx context.Context, q *Question, peer *Peer, l Loan, most int64) bool {
	whole, err := counter.ParseLimit(q.Limit)
	if err != nil || most == 0 || !a.inTime(ctx, q, l) {
		return false
	}
	old, ok := a.holds.add(q, whole.Window(), peer, l, most, time.Now())
	if old != nil {
		a.running.Go(func() {
			for _, each := range a.holds.empty(old) {
				a.returnLoan(ctx, &old.question, each)
			}
		})
	}
	return ok
}

// Agent.inTime reports whether this region's clock is in the window of a loan, or will soon be.
// Otherwise this region cannot use the loan.
func (a *Agent) inTime(ctx context.Context, q *Question, l Loan) bool {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	part, look, err := a.lookAt(ctx, q)
	start := look.At + look.Reset - part.Window()
	return err == nil && l.Receipt >= start && max(l.Receipt, l.At)-look.At <= earlyMax
}
