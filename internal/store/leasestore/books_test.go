// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// request returns the checks of a random request under one to four counters. Leased and exact
// limits occur in any order.
func request(random *rand.Rand, counters []counter.Check) []counter.Check {
	checks := make([]counter.Check, 0, 4)
	cost := 1 + random.Int64N(3)
	for _, i := range random.Perm(len(counters))[:1+random.IntN(4)] {
		c := counters[i]
		c.Cost = cost
		checks = append(checks, c)
	}
	return checks
}

// TestTheBooksBalance: three nodes send random requests under several limits, one at a time and in
// batches. If nothing fails, the store has charged exactly the admitted units. If calls fail, it
// has charged at least the admitted units. No request is late or waits forever.
func TestTheBooksBalance(t *testing.T) {
	seed := seed.First(t)
	for _, lose := range []float64{0, 0.05} {
		t.Run(fmt.Sprintf("lose=%v", lose), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, uint64(lose*100)))
				f, books := newFar(t, time.Millisecond), &ledger{}
				f.lose = lose
				counters := []counter.Check{
					leasedOf("hot", limittest.New(t, "5000/1h fixed_window"), 1), leasedOf("warm", limittest.New(t, "20000/1h"), 1),
					leasedOf("small", limittest.New(t, "40/1h fixed_window"), 1), leasedOf("wide", limittest.New(t, "900000/1h"), 1),
					takeOf("exact", limittest.New(t, "9000/1h"), 1), takeOf("log", limittest.New(t, "3000/1h sliding_log"), 1),
				}
				nodes := []*Store{f.node(Options{}), f.node(Options{}), f.node(Options{CountersMax: 1})}
				var all sync.WaitGroup
				for i := range max(3_000, racescale.Fewer(9_000)) {
					s, checks := nodes[i%3], request(random, counters)
					if random.IntN(4) > 0 {
						all.Go(func() { _ = books.ask(s, checks...) })
					} else {
						all.Go(func() { books.askAll(s, checks, request(rand.New(rand.NewPCG(seed, uint64(i))), counters)) })
					}
					if random.IntN(8) > 0 {
						time.Sleep(time.Duration(random.IntN(400)) * time.Microsecond)
					}
				}
				all.Wait()
				for _, s := range nodes {
					f.close(s)
				}
				books.checkBalance(f, counters)
			})
		})
	}
}

// ledger.askAll makes several requests at once.
func (l *ledger) askAll(s *Store, requests ...[]counter.Check) {
	start, calls := time.Now(), make([]counter.Call, len(requests))
	for i := range requests {
		calls[i] = counter.Call{Checks: requests[i], Results: make([]counter.Result, len(requests[i]))}
	}
	s.TakeAll(context.Background(), calls)
	for i := range calls {
		l.enter(time.Since(start), calls[i].Checks, calls[i].Results, calls[i].Err)
	}
}

// ledger.checkBalance compares the units that the store has charged with those that were admitted.
func (l *ledger) checkBalance(f *remoteStore, counters []counter.Check) {
	f.Helper()
	for i := range counters {
		key := string(counters[i].Key)
		used, _ := f.readUsed(key)
		admitted := l.admitted[key]
		if used < admitted || f.lose == 0 && used != admitted || used > counters[i].Limit.Count() {
			f.Errorf("%s: the store has charged %d of %d, %d were admitted", key, used, counters[i].Limit.Count(), admitted)
		}
	}
	if l.slowest > 2*farTimeout+10*time.Millisecond {
		f.Errorf("a request took %v", l.slowest)
	}
	if f.lose == 0 && (l.failed > 0 || l.denied == 0) || l.failed == l.requests {
		f.Errorf("of %d requests %d failed and %d were denied", l.requests, l.failed, l.denied)
	}
	if calls, _ := f.calls(); calls > l.requests*3/4 {
		f.Errorf("%d calls for %d requests", calls, l.requests)
	}
}

// TestARefundIsSentOnce: a refund is sent once, whatever its outcome.
func TestARefundIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "100000/1h"), &ledger{}
		s := f.node(Options{})
		warm(t, s, books, leasedOf("a", l, 1))
		f.set(func() { f.lose = 1; clear(f.backs) })
		before := s.Stats()
		time.Sleep(2 * time.Second)
		var sent int64
		f.set(func() {
			for _, units := range f.backs {
				sent += units
			}
		})
		if sent < before.InHand || s.Stats().InHand != 0 || int64(s.Stats().Returned-before.Returned) != sent {
			t.Errorf("%d units were in hand, %d were sent back, %d are in hand", before.InHand, sent, s.Stats().InHand)
		}
		f.close(s)
		f.set(func() { f.lose = 0 })
		if used, returned := f.readUsed("a"); used < books.admitted["a"] {
			t.Errorf("%d came back, %d are used and %d were admitted", returned, used, books.admitted["a"])
		}
	})
}

// TestCloseGivesEverythingBack: Close refunds held units and the units of calls under way. Later
// calls go to the store.
func TestCloseGivesEverythingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, 2*time.Millisecond), limittest.New(t, "100000/1h"), &ledger{}
		s := f.node(Options{})
		warm(t, s, books, leasedOf("a", l, 1))
		var all sync.WaitGroup
		for range 300 {
			all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
		}
		f.close(s)
		all.Wait()
		f.close(s)
		for range 10 {
			_ = books.ask(s, leasedOf("a", l, 1))
		}
		if got, _ := f.readUsed("a"); got != books.admitted["a"] || books.admitted["a"] != 1310 {
			t.Errorf("the store has charged %d, %d were admitted, want 1310", got, books.admitted["a"])
		}
		hung := f.node(Options{})
		warm(t, hung, books, leasedOf("a", l, 1))
		f.set(func() { f.hang = true })
		all.Go(func() { _ = books.ask(hung, leasedOf("b", l, 1)) })
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		time.Sleep(time.Millisecond)
		if err := hung.Close(ctx); err == nil {
			t.Error("Close while a call hangs says that all was given back")
		}
		all.Wait()
		f.close(hung)
	})
}
