// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/sources"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// A lender remembers a bounded number of its loans, and can recall only those. Questions of one
// source occupy at most half of the counters.
const (
	recallsMax = 1 << 12 // counters
	recallMax  = 16      // loans of one counter
)

// recalls holds the loans of this agent that have units for later. After such a loan, the counter
// has been charged with more than is available, so it admits nothing, even if units are borrowed.
// If requests of this region need units, the agent recalls what the borrower still holds.
type recalls struct {
	sources *sources.Counts

	mu    sync.Mutex
	byKey map[uint64]*recallable // by the hash of a key
	swept time.Time
}

// recallable holds the loans of one counter that have units for later, in its present window.
type recallable struct {
	loans  []Loan
	source sources.Source
	end    time.Time // the end of the window
}

// recalls.add adds a loan, if there is room for it. It forgets the loans of other windows.
func (s *recalls) add(key uint64, l Loan, source uint32, window counter.Micros, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(now)
	n := s.byKey[key]
	if n == nil {
		from, ok := s.sources.Enter(source, recallsMax)
		if !ok || len(s.byKey) >= recallsMax {
			from.Leave()
			return
		}
		n = &recallable{source: from}
		if s.byKey == nil {
			s.byKey = make(map[uint64]*recallable)
		}
		s.byKey[key] = n
	}
	n.loans = slices.DeleteFunc(n.loans, func(other Loan) bool { return other.Receipt != l.Receipt })
	if n.end = now.Add(time.Duration(window) * time.Microsecond); len(n.loans) < recallMax {
		n.loans = append(n.loans, l)
	}
}

// sweepLocked forgets the loans whose windows have ended.
func (s *recalls) sweepLocked(now time.Time) {
	if now.Sub(s.swept) < sweepEvery {
		return
	}
	s.swept = now
	for key, n := range s.byKey {
		if now.After(n.end) {
			s.forgetLocked(key, n)
		}
	}
}

func (s *recalls) forgetLocked(key uint64, n *recallable) {
	delete(s.byKey, key)
	n.source.Leave()
}

// recalls.ids returns the IDs of the loans of a counter.
func (s *recalls) ids(key uint64) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.byKey[key]; n != nil {
		for _, l := range n.loans {
			ids = append(ids, l.ID)
		}
	}
	return ids
}

// recalls.remove removes the loan of which l is a part that was returned, and reports whether s had
// that loan.
func (s *recalls) remove(key uint64, l Loan) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.byKey[key]
	if n == nil {
		return false
	}
	at := slices.IndexFunc(n.loans, func(lent Loan) bool {
		return lent.ID == l.ID && lent.Receipt == l.Receipt && l.Units <= lent.Units+lent.Later
	})
	if at < 0 {
		return false
	}
	if n.loans = slices.Delete(n.loans, at, at+1); len(n.loans) == 0 {
		s.forgetLocked(key, n)
	}
	return true
}

// recalled is what the borrower still held of a loan that its lender recalls.
type recalled struct {
	lender *Peer
	loan   Loan
}

// holds.recall removes from a hold all that it still has of the loans that a question recalls, and
// returns it.
func (s *holds) recall(q *Question) (back []recalled) {
	h := s.of(q)
	if h == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.loans = slices.DeleteFunc(h.loans, func(each *heldLoan) bool {
		if each.loan.ID == "" || !slices.Contains(q.Recall, each.loan.ID) {
			return false
		}
		if units := each.left(); units > 0 {
			back = append(back, recalled{each.peer, Loan{ID: each.loan.ID, Units: units, Receipt: each.loan.Receipt}})
		}
		each.end()
		return true
	})
	return back
}

// Agent.recall answers a question that recalls loans with the units that this agent holds of these
// loans. If another agent of the region holds further units of them, that agent sends these itself.
func (a *Agent) recall(ctx context.Context, q *Question) (back []Loan) {
	for _, each := range a.holds.recall(q) {
		back = append(back, each.loan)
	}
	if len(back) == len(q.Recall) || a.o.Tell == nil {
		return back
	}
	message, err := json.Marshal(&Question{Key: q.Key, Limit: q.Limit, Want: 1, Shares: q.Shares, Source: q.Source, Recall: q.Recall})
	if err != nil {
		return back // unreachable
	}
	if err := a.o.Tell(ctx, message); err != nil {
		a.o.Logger.Debug("the other agents of the region could not be told what another region recalls", "error", err)
	}
	return back
}

// Agent.sendBack returns to the lender what this agent holds of loans, after another agent of this
// region has passed on the recall.
func (a *Agent) sendBack(ctx context.Context, q *Question) {
	back := a.holds.recall(q)
	if len(back) == 0 {
		return
	}
	question := *q
	question.Recall = nil
	a.running.Go(func() {
		for _, each := range back {
			a.giveBack(context.WithoutCancel(ctx), each.lender, &question, each.loan)
		}
	})
}

// Agent.takeRecalled restores the units of this agent's loans that a borrower sends back after a
// recall. It returns how many were restored.
func (a *Agent) takeRecalled(ctx context.Context, q *Question, back []Loan, r *round) (units int64) {
	for _, l := range back {
		restored, err := a.takeBack(ctx, &returned{*q, l})
		if err != nil {
			a.counts.lost.Add(uint64(max(0, l.Units)))
			continue
		}
		units += restored.Units
	}
	if units > 0 {
		r.lent.Add(units)
		r.restored.Add(units)
		a.publish(ctx, &regionstore.Answer{Key: q.Key, Units: min(units, counter.CountMax)})
	}
	return units
}
