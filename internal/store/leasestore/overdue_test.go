// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestCallsThatHang: if calls hang now and then, their own requests fail, but a waiting request
// rarely does. No request is late, and at least the admitted units are charged. A third of the
// requests come one at a time, and the rest in groups.
func TestCallsThatHang(t *testing.T) {
	seed := seed.First(t)
	for _, text := range []string{"1000000/1h fixed_window", "1000000/1h", "20000/1s burst 20000", "300/1s"} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				f, l, books := newFar(t, time.Millisecond), limittest.New(t, text), &ledger{}
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
				// The request waited, and then made its own call.
				if books.slowest > 2*farTimeout+time.Millisecond {
					t.Errorf("a request took %v", books.slowest)
				}
				for key, admitted := range books.admitted {
					if used, _ := f.readUsed(key); used < admitted && l.Algorithm() != counter.TokenBucket {
						t.Errorf("%s: %d charged, %d admitted", key, used, admitted)
					}
				}
			})
		})
	}
}

// TestAStoreThatHangsIsAskedAFewTimes: a store that hangs gets a few calls for a counter, not one
// for each waiting request.
func TestAStoreThatHangsIsAskedAFewTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "600/1h"), &ledger{}
		s := f.node(Options{})
		f.set(func() { f.hang = true })
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
		}
		all.Wait()
		if calls, _ := f.calls(); calls > 5 || books.failed != 1000 || books.slowest > 2*farTimeout {
			t.Errorf("%d calls, %d failed, the last after %v", calls, books.failed, books.slowest)
		}
		f.close(s)
	})
}

// TestFirstContact: the first requests to a slow store succeed, although its delay has not been
// measured yet.
func TestFirstContact(t *testing.T) {
	for _, rtt := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
		t.Run(fmt.Sprint(rtt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, l, books := newFar(t, rtt), limittest.New(t, "600000/1h"), &ledger{}
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
				if used, _ := f.readUsed("a"); used != 1000 {
					t.Errorf("the store has charged %d", used)
				}
			})
		})
	}
}

// TestAnOvertakenCall: if a call is answered after a waiting request has made another, each request
// gets its unit, and no more is charged.
func TestAnOvertakenCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, 20*time.Millisecond), limittest.New(t, "600/1h"), &ledger{}
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
		if used, _ := f.readUsed("a"); used != 3 {
			t.Errorf("the store has charged %d, want 3", used)
		}
	})
}

// queueingStore is a store that is slow for one key, as if calls waited in a queue, and fast for
// others. Its calls for that key return an error after a delay if err is set.
type queueingStore struct {
	counter.Store
	slow  string
	delay time.Duration
	err   error
}

func (q queueingStore) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if string(checks[0].Key) == q.slow {
		time.Sleep(q.delay)
		if q.err != nil {
			return q.err
		}
	}
	return q.Store.Take(ctx, checks, results)
}

// TestLateBehindACall: a request that waits in vain fails with ErrOverloaded. It fails with
// ErrUnavailable only if a call for its counter failed because the store did not answer, and the
// store did not answer other calls either.
func TestLateBehindACall(t *testing.T) {
	away := fmt.Errorf("away: %w", counter.ErrUnavailable)
	for name, c := range map[string]struct {
		delay  time.Duration
		err    error
		others bool // whether the store answers other calls
		outage bool
	}{
		"others are answered":                 {4 * farTimeout, nil, true, false},
		"nothing is answered":                 {4 * farTimeout, nil, false, false},
		"calls fail late":                     {4 * farTimeout, away, false, false},
		"calls fail":                          {farTimeout, away, false, true},
		"calls fail, and others are answered": {farTimeout, away, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				testLateBehindACall(t, queueingStore{delay: c.delay, err: c.err}, c.others, c.outage)
			})
		})
	}
}

func testLateBehindACall(t *testing.T, inner queueingStore, others, outage bool) {
	f, l := newFar(t, time.Millisecond), limittest.New(t, "600/1h")
	slow, other := leasedOf("a", l, 1), takeOf("b", l, 1)
	inner.Store, inner.slow = f, string(slow.Key)
	// A tenth of the timeout after the first call, a second call begins. The requests that wait for
	// it must stop waiting before it fails, and not at the same time.
	s, err := New(inner, Options{WaitMax: farTimeout * 21 / 20})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var overloaded, unavailable atomic.Int64
	for range 100 {
		all.Go(func() {
			switch err := s.Take(context.Background(), []counter.Check{slow}, make([]counter.Result, 1)); {
			case errors.Is(err, counter.ErrOverloaded):
				overloaded.Add(1)
			case errors.Is(err, counter.ErrUnavailable):
				unavailable.Add(1)
			}
		})
	}
	for range 2 * farTimeout / time.Millisecond {
		time.Sleep(time.Millisecond)
		if others {
			if err := s.Take(context.Background(), []counter.Check{other}, make([]counter.Result, 1)); err != nil {
				t.Error(err)
			}
		}
	}
	all.Wait()
	// a few requests have made the calls for all others
	if a, b := overloaded.Load(), unavailable.Load(); outage && (b < 90 || a > 0) || !outage && a < 90 {
		t.Errorf("%d requests were too many, %d met an outage", a, b)
	}
	f.close(s)
}
