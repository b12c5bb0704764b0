// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"slices"
	"sync"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// A lender remembers a bounded number of its loans, and can recall only those.
const (
	recallsMax = 1 << 12 // counters
	recallMax  = 16      // loans of one counter
)

// recalls are the loans for later of this agent. After such a loan, the counter has been charged
// with more than is available, so it admits nothing, not even for units that are borrowed. If
// requests of this region need units, the agent recalls what the borrower still holds.
type recalls struct {
	mu    sync.Mutex
	byKey map[uint64][]Loan // by the hash of a key
}

// The method add adds a loan. Loans of other windows are forgotten.
func (s *recalls) add(key uint64, l Loan) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKey == nil || len(s.byKey) >= recallsMax && s.byKey[key] == nil {
		s.byKey = make(map[uint64][]Loan) // those that are forgotten end with their window
	}
	kept := slices.DeleteFunc(s.byKey[key], func(other Loan) bool { return other.Receipt != l.Receipt })
	if len(kept) < recallMax {
		kept = append(kept, l)
	}
	s.byKey[key] = kept
}

// The method ids returns the loans of a counter.
func (s *recalls) ids(key uint64) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.byKey[key] {
		ids = append(ids, l.ID)
	}
	return ids
}

// The method remove removes the loan of which l is the rest, and reports whether there was one.
func (s *recalls) remove(key uint64, l Loan) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.byKey[key], func(lent Loan) bool {
		return lent.ID == l.ID && lent.Receipt == l.Receipt && l.Units <= lent.Units+lent.Later
	})
	if at < 0 {
		return false
	}
	if s.byKey[key] = slices.Delete(s.byKey[key], at, at+1); len(s.byKey[key]) == 0 {
		delete(s.byKey, key)
	}
	return true
}

// The method recall takes all that is left of the loans that a question recalls out of the hold.
func (s *holds) recall(q *Question) (back []Loan) {
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
			back = append(back, Loan{ID: each.loan.ID, Units: units, Receipt: each.loan.Receipt})
		}
		each.end()
		return true
	})
	return back
}

// The method takeRecalled restores units that another region sends back, of loans of this agent. It
// returns how many count.
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
