// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// TestALaterLoanIsTakenBackOnce: of messages that return the same loan for later at the same time,
// one is accepted.
func TestALaterLoanIsTakenBackOnce(t *testing.T) {
	const rounds, copies = 20_000, 4
	l := newLender(t, "2000/1m", equalShares, 0)
	q := Question{Key: l.key, Limit: l.whole.String(), Want: 1, Shares: equalShares}
	for range rounds {
		lent := l.lent.add(l.hash(l.key), Loan{Later: 1, Receipt: l.now}, time.Now())
		l.remember(&q, lent)
		var taken atomic.Int64
		var returning sync.WaitGroup
		start := make(chan struct{})
		for range copies {
			returning.Go(func() {
				<-start
				if _, err := l.takeBack(t.Context(), &returned{q, Loan{ID: lent.ID, Units: 1, Receipt: lent.Receipt}}); err == nil {
					taken.Add(1)
				}
			})
		}
		close(start)
		if returning.Wait(); taken.Load() != 1 {
			t.Fatalf("a loan was taken back %d times", taken.Load())
		}
	}
}

// TestWhatACounterDoesNotTakeCanBeReturned: units that the counter did not take remain those of
// their loans, which can be recalled.
func TestWhatACounterDoesNotTakeCanBeReturned(t *testing.T) {
	l, _ := pair(t)
	l.now += 30 * counter.Second // half of the window before still counts, and nothing of this one
	q := &Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: 1, Shares: equalShares}
	start := l.now - l.now%counter.Minute
	for id, units := range map[string]int64{"a": 300, "b": 400} {
		if !l.holds.add(q, counter.Minute, reach(l), Loan{ID: id, Units: units, Receipt: start, At: 1}, 2000, time.Now()) {
			t.Fatal("a loan is not held")
		}
	}
	if n := l.restoreOnce(t.Context(), q, l.holds.of(q), new(stock)); n != 0 {
		t.Fatalf("%d units were restored to a counter that has counted none", n)
	}
	recall := *q
	for id, units := range map[string]int64{"a": 300, "b": 400} {
		recall.Recall = []string{id}
		if back := l.holds.recall(&recall); len(back) != 1 || back[0].Units != units {
			t.Errorf("%+v is returned of a loan of %d units", back, units)
		}
	}
}

// TestManyLoansCanBeReturned: of any number of loans that an agent holds of a counter, none is
// returned with more units than it had.
func TestManyLoansCanBeReturned(t *testing.T) {
	l := newLender(t, "2000/1m", equalShares, 0)
	q := &Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: 1, Shares: equalShares}
	for i := range 3 * heldMax {
		id := fmt.Sprint(i)
		l.holds.add(q, counter.Minute, reach(l), Loan{ID: id, Units: 5, Receipt: l.now, At: 1}, 2000, time.Now())
		q.Recall = append(q.Recall, id)
	}
	for _, back := range l.holds.recall(q) {
		if back.Units > 5 {
			t.Errorf("%+v is returned of a loan of 5 units", back)
		}
	}
}

// TestAFloodLeavesRoomToHold: a client whose requests have thousands of counters occupies half of
// the counters of which an agent holds units, and of those whose loans it can recall.
func TestAFloodLeavesRoomToHold(t *testing.T) {
	l := newLender(t, "100/24h", equalShares, 0)
	other := l.flood(0, 9, 1)
	lent := Loan{ID: "a", Later: 1, Receipt: l.now, From: 1, Full: 2}
	l.remember(other, lent)
	for i := range 2 * holdsMax {
		q := l.flood(i, 7, 1)
		l.remember(q, lent)
		l.holds.add(q, counter.Day, reach(l), Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, time.Now())
	}
	if !l.holds.add(other, counter.Day, reach(l), Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, time.Now()) {
		t.Error("no unit of another client's counter can be held")
	}
	if ids := l.recalls.ids(l.hash(other.Key)); len(ids) != 1 {
		t.Errorf("the loan of another client's counter cannot be recalled: %q", ids)
	}
}

// The method remember adds a loan to those that can be recalled.
func (l *lender) remember(q *Question, lent Loan) {
	l.recalls.add(l.hash(q.Key), lent, q.Source, counter.Minute, time.Now())
}

// TestCountersOfWhichNothingIsHeld: counters whose units were restored leave their places.
func TestCountersOfWhichNothingIsHeld(t *testing.T) {
	l := newLender(t, "100/24h", equalShares, 0)
	now := time.Now()
	for i := range holdsMax {
		q := l.flood(i, uint32(i+1), 1)
		l.holds.add(q, counter.Day, reach(l), Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, now)
		l.holds.remove(l.holds.of(q), l.now, l.now, 1)
	}
	if !l.holds.add(l.flood(0, 0, 1), counter.Day, reach(l), Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, now.Add(time.Minute)) {
		t.Error("there is no place for another counter, although nothing is held")
	}
}
