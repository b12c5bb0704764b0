// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// TestALaterLoanIsTakenBackOnce: if several messages return the same loan of later units at the
// same time, only one of them is accepted.
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

// TestARegionWithAWrongClockHoldsNothing: a region whose clock is wrong can be in another window
// than the lender, so it cannot use the units of a loan. It returns them to the lender at once.
func TestARegionWithAWrongClockHoldsNothing(t *testing.T) {
	for _, ahead := range []counter.Micros{-counter.Hour, -10 * counter.Second, counter.Hour} {
		for _, limit := range []string{"2000/1m fixed_window", "2000/1m"} {
			t.Run(fmt.Sprint(limit, " ", ahead), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					busy, idle := newLender(t, limit, equalShares, 0), newLender(t, limit, equalShares, 1)
					if limit == "2000/1m" {
						busy, idle = pairApart(t, ahead)
					} else {
						busy.now += ahead
						busy.o.Peers = []*Peer{reach(idle)}
					}
					busy.takes(1000)
					busy.asks(10)
					if _, held := busy.holds.all(); held > 0 {
						t.Errorf("%d units are held", held)
					}
					want := int64(900)
					if limit == "2000/1m" {
						want = 8 // nearly all units of the previous window still count
					}
					if !idle.takes(want) {
						t.Errorf("the lender does not have %d units", want)
					}
				})
			})
		}
	}
}

// TestWhatACounterDoesNotTakeCanBeReturned: units that the counter did not take stay with their
// loans, which can still be recalled.
func TestWhatACounterDoesNotTakeCanBeReturned(t *testing.T) {
	l, _ := pair(t)
	l.now += 30 * counter.Second // half of the previous window's units still count, and none of this window's
	q := &Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: 1, Shares: equalShares}
	start := l.now - l.now%counter.Minute
	for id, units := range map[string]int64{"a": 300, "b": 400} {
		if !l.keeps(q, Loan{ID: id, Units: units, Receipt: start, At: 1}, 2000, time.Now()) {
			t.Fatal("a loan is not held")
		}
	}
	if n := l.restoreOnce(t.Context(), q, l.holds.of(q), new(stock)); n != 0 {
		t.Fatalf("%d units were restored to a counter that has counted none", n)
	}
	recall := *q
	for id, units := range map[string]int64{"a": 300, "b": 400} {
		recall.Recall = []string{id}
		if back := l.holds.recall(&recall); len(back) != 1 || back[0].loan.Units != units {
			t.Errorf("%+v is returned of a loan of %d units", back, units)
		}
	}
}

// TestManyLoansCanBeReturned: an agent can hold any number of loans of a counter, and returns none
// of them with more units than it had.
func TestManyLoansCanBeReturned(t *testing.T) {
	l := newLender(t, "2000/1m", equalShares, 0)
	q := &Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: 1, Shares: equalShares}
	for i := range 3 * heldMax {
		id := fmt.Sprint(i)
		l.keeps(q, Loan{ID: id, Units: 5, Receipt: l.now, At: 1}, 2000, time.Now())
		q.Recall = append(q.Recall, id)
	}
	for _, back := range l.holds.recall(q) {
		if back.loan.Units > 5 {
			t.Errorf("%+v is returned of a loan of 5 units", back)
		}
	}
}

// TestAFloodLeavesRoomToHold: an agent has places for counters of which it holds units, and places
// for counters whose loans it can recall. A client whose requests have thousands of counters
// occupies half of the places of each kind.
func TestAFloodLeavesRoomToHold(t *testing.T) {
	l := newLender(t, "100/24h", equalShares, 0)
	other := l.flood(0, 9, 1)
	lent := Loan{ID: "a", Later: 1, Receipt: l.now, From: 1, Full: 2}
	l.remember(other, lent)
	for i := range 2 * holdsMax {
		q := l.flood(i, 7, 1)
		l.remember(q, lent)
		l.keeps(q, Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, time.Now())
	}
	if !l.keeps(other, Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, time.Now()) {
		t.Error("no unit of another client's counter can be held")
	}
	if ids := l.recalls.ids(l.hash(other.Key)); len(ids) != 1 {
		t.Errorf("the loan of another client's counter cannot be recalled: %q", ids)
	}
}

// lender.remember adds a loan to the loans that can be recalled.
func (l *lender) remember(q *Question, lent Loan) {
	l.recalls.add(l.hash(q.Key), lent, q.Source, counter.Minute, time.Now())
}

// TestCountersOfWhichNothingIsHeld: a counter frees its place when all its held units have been
// restored.
func TestCountersOfWhichNothingIsHeld(t *testing.T) {
	l := newLender(t, "100/24h", equalShares, 0)
	now := time.Now()
	for i := range holdsMax {
		q := l.flood(i, uint32(i+1), 1)
		l.keeps(q, Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, now)
		l.holds.remove(l.holds.of(q), l.now, l.now, 1)
	}
	if !l.keeps(l.flood(0, 0, 1), Loan{ID: "b", Units: 1, Receipt: l.now, At: 1}, 5, now.Add(time.Minute)) {
		t.Error("there is no place for another counter, although nothing is held")
	}
}

// TestAnEditedLimit: when a limit or the shares change, the agent returns what it holds under the
// old ones, and holds units under the new ones.
func TestAnEditedLimit(t *testing.T) {
	busy, idle := pair(t)
	busy.asks(0)
	if _, held := busy.holds.all(); held < 900 {
		t.Fatalf("%d units are held", held)
	}
	edited, err := busy.whole.Resized(3000, 0)
	if err != nil {
		t.Fatal(err)
	}
	q := &Question{Key: busy.key, Limit: edited.String(), Part: 1500, Want: 100, Shares: equalShares}
	start := busy.now - busy.now%counter.Minute
	busy.receive(t.Context(), busy.o.Peers[0], q, Loan{ID: "new", Later: 70, Receipt: start, From: start, Full: start + counter.Minute}, 3000, new(round))
	busy.running.Wait()
	if _, held := busy.holds.all(); held != 70 {
		t.Errorf("%d units are held, want the 70 of the new loan", held)
	}
	idle.now += 30 * counter.Second
	if !idle.takes(450) {
		t.Error("the units of the old limit were not returned")
	}
}

// TestDemandIsBounded tests that a region's demand is bounded even if the region has counted very
// many units in the first moment of a window.
func TestDemandIsBounded(t *testing.T) {
	for _, units := range []float64{0, 1, float64(counter.CountMax), math.MaxInt64, 1e30, math.Inf(1)} {
		if n := likely(units); n < 0 || n > 4*counter.CountMax {
			t.Errorf("%g units are likely %d", units, n)
		}
	}
	l := newLender(t, "1099511627776/24h fixed_window", equalShares, 0)
	l.now++
	if !l.takes(1 << 38) {
		t.Fatal("the units are not available")
	}
	q := &Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: l.part.Count(), Shares: equalShares}
	if sent := l.ahead(t.Context(), q, new(stock), counter.CountMax); sent == nil || sent.Want < 1<<38 {
		t.Errorf("a region that will need all units asks for %+v", sent)
	}
}

// TestUnitsAreReturnedLate: what an agent has held for minutes is not lost when it ends.
func TestUnitsAreReturnedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, idle := newLender(t, "2000/1h fixed_window", equalShares, 0), newLender(t, "2000/1h fixed_window", equalShares, 1)
		q := &Question{Key: busy.key, Limit: busy.whole.String(), Part: 1000, Want: 100, Short: true, Ahead: true, Shares: equalShares}
		l, err := idle.lend(t.Context(), q)
		if err != nil || l.Units != 100 {
			t.Fatalf("%+v, error %v", l, err)
		}
		busy.receive(t.Context(), reach(idle), q, l, 100, new(round))
		time.Sleep(10 * time.Minute)
		for i := range 10 {
			idle.lent.add(uint64(i), Loan{Units: 1, Receipt: 1}, time.Now())
		}
		busy.returnHeld(context.Background())
		if !idle.takes(1000) {
			t.Error("units that were held are lost")
		}
	})
}

// lender.keeps adds a loan to a hold, and reports whether there was room for it.
func (l *lender) keeps(q *Question, loan Loan, most int64, now time.Time) bool {
	_, ok := l.holds.add(q, l.whole.Window(), reach(l), loan, most, now)
	return ok
}

// TestHeldUnitsDelayNoQuestion: an agent may hold units that become usable only later. While
// requests wait, it asks the other regions at once, because they may have units now.
func TestHeldUnitsDelayNoQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, _ := pair(t)
		start := busy.now - busy.now%counter.Minute
		q := &Question{Key: busy.key, Limit: busy.whole.String(), Part: 1000, Want: 100, Shares: equalShares}
		begun, asked := time.Now(), time.Duration(-1)
		busy.clock = func() counter.Micros { return busy.now + counter.Micros(time.Since(begun).Microseconds()) }
		busy.keeps(q, Loan{ID: "a", Later: 590, Receipt: start, From: busy.now, Full: start + counter.Minute}, 2000, time.Now())
		busy.o.Peers = []*Peer{{Name: "other", send: func(context.Context, string, any) (Loan, error) {
			asked = time.Since(begun)
			return Loan{}, nil
		}}}
		busy.takes(8)
		busy.asks(50)
		if asked < 0 || asked > 100*time.Millisecond {
			t.Errorf("another region was asked after %v", asked)
		}
	})
}

// TestAllHeldCountersAreReturned: an agent that ends returns its held units of all counters, even
// to a region that is 200 ms away.
func TestAllHeldCountersAreReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLender(t, "2000/1m", equalShares, 0)
		var back atomic.Int64
		peer := &Peer{Name: "peer", send: func(ctx context.Context, _ string, message any) (Loan, error) {
			select {
			case <-time.After(farTrip):
			case <-ctx.Done():
				return Loan{}, ctx.Err()
			}
			units := message.(*returned).Loan.Units
			back.Add(units)
			return Loan{Units: units}, nil
		}}
		for i := range holdsMax {
			l.holds.add(l.flood(i, uint32(i+1), 1), counter.Minute, peer, Loan{ID: "a", Units: 1, Receipt: l.now, At: 1}, 2000, time.Now())
		}
		_, held := l.holds.all()
		if l.returnHeld(t.Context()); held < holdsMax*9/10 || back.Load() != held {
			t.Errorf("%d of %d units were returned", back.Load(), held)
		}
	})
}

// TestALongWindowIsNotLentForLater: a region that lends units of a long window still admits
// requests, even if the borrower's agent is killed, or cannot be reached.
func TestALongWindowIsNotLentForLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := newLender(t, "2000/24h", equalShares, 1)
		if !idle.takes(1000) {
			t.Fatal("the region does not have its part")
		}
		idle.tally(&Question{Key: idle.key, Limit: idle.whole.String()}, idle.now-idle.now%counter.Day, 1000) // it has lent them
		idle.now += counter.Day + counter.Hour
		q := &Question{Key: idle.key, Limit: idle.whole.String(), Part: 1000, Want: 1000, Ahead: true, Shares: equalShares}
		l, err := idle.lend(t.Context(), q)
		if err != nil || l.Units < 1 {
			t.Fatalf("%+v, error %v", l, err)
		}
		if !idle.takes(1) {
			t.Errorf("the lender denies all requests for %v after the loan %+v", l.Full-idle.now, l)
		}
	})
}

// TestARecallReachesTheOtherAgent: the agent of a region that is asked to send units back may not
// be the one that holds them. The agent that holds them returns them nevertheless.
func TestARecallReachesTheOtherAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		holder, idle := pair(t)
		asked := &lender{Agent: New(holder.o)}
		asked.o.Tell = func(_ context.Context, message []byte) error {
			asked.hear(t.Context(), string(message))
			holder.hear(t.Context(), string(message))
			return nil
		}
		holder.asks(0)
		if _, held := holder.holds.all(); held < 900 {
			t.Fatalf("%d units are held", held)
		}
		holder.now += 10 * counter.Second
		idle.now += 10 * counter.Second
		idle.o.Peers = []*Peer{reach(asked)}
		idle.asks(1)
		holder.running.Wait()
		if _, held := holder.holds.all(); held != 0 || !idle.takes(100) {
			t.Errorf("%d units are still held, and the lender denies requests", held)
		}
	})
}
