// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/storetest"
)

// TestCallsThatHang now and then fail those that made them, and next to nobody who waits for them: as without leases. None is
// late, and no less is charged than was admitted. A third of the requests come alone, the others some at once.
func TestCallsThatHang(t *testing.T) {
	seed := storetest.Seed(t)
	for _, text := range []string{"1000000/1h fixed_window", "1000000/1h", "20000/1s burst 20000", "300/1s"} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				f, l, books := newFar(t, time.Millisecond), limitOf(t, text), &ledger{}
				f.random, f.hangs = rand.New(rand.NewPCG(seed, 1)), 0.03
				s := f.node(Options{})
				var all sync.WaitGroup
				for range 10_000 {
					key := fmt.Sprint(random.IntN(500))
					for range 1 + random.IntN(3)*3 {
						all.Go(func() { _ = books.ask(s, leasedOf(key, l, 1)) })
					}
					time.Sleep(time.Duration(random.IntN(600)) * time.Microsecond)
				}
				all.Wait()
				f.close(s)
				calls, _ := f.calls()
				t.Logf("%d of %d requests failed, %d of %d calls hung", books.failed, books.requests, f.hung, calls)
				if books.failed > f.hung*11/10 || f.hung < 100 {
					t.Errorf("%d requests failed with %d calls that hung", books.failed, f.hung)
				}
				if books.slowest > farTimeout+time.Millisecond {
					t.Errorf("a request took %v", books.slowest)
				}
				for key, admitted := range books.admitted {
					if used, _ := f.used(key); used < admitted && l.Algorithm() != core.TokenBucket {
						t.Errorf("%s: %d charged, %d admitted", key, used, admitted)
					}
				}
			})
		})
	}
}

// TestAStoreThatHangsIsAskedAFewTimes for a counter, and not by each of those who wait for it.
func TestAStoreThatHangsIsAskedAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limitOf(t, "600/1h"), &ledger{}
		s := f.node(Options{})
		f.set(func() { f.hang = true })
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
		}
		all.Wait()
		if calls, _ := f.calls(); calls > 5 || books.failed != 1000 || books.slowest != farTimeout {
			t.Errorf("%d calls, %d failed, the last after %v", calls, books.failed, books.slowest)
		}
		f.close(s)
	})
}

// TestFirstContact is with a store that is far away, which nobody knows yet.
func TestFirstContact(t *testing.T) {
	for _, rtt := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
		t.Run(fmt.Sprint(rtt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, l, books := newFar(t, rtt), limitOf(t, "600000/1h"), &ledger{}
				s, err := New(strict{f}, Options{})
				if err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				for range 1000 {
					all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
				}
				all.Wait()
				if calls, _ := f.calls(); books.failed > 0 || books.admitted["a"] != 1000 || calls > 3 {
					t.Errorf("%d of 1000 requests failed, %d admitted with %d calls", books.failed, books.admitted["a"], calls)
				}
				f.close(s)
				if used, _ := f.used("a"); used != 1000 {
					t.Errorf("the store has charged %d", used)
				}
			})
		})
	}
}

// TestAnOvertakenCall is answered after who waited for it has made another one: each has its unit, and no more is charged.
func TestAnOvertakenCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, 20*time.Millisecond), limitOf(t, "600/1h"), &ledger{}
		s := f.node(Options{})
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
		}
		all.Wait()
		if calls, atOnce := f.calls(); calls != 2 || atOnce != 2 || books.admitted["a"] != 3 || books.failed > 0 {
			t.Errorf("%d calls, %d at once, %d admitted, %d failed", calls, atOnce, books.admitted["a"], books.failed)
		}
		f.close(s)
		if used, _ := f.used("a"); used != 3 {
			t.Errorf("the store has charged %d, want 3", used)
		}
	})
}
