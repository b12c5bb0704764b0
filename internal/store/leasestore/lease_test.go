// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestAHotLimitIsDecidedInHand: of ten thousand requests a second to three nodes, few cause calls,
// and no limit is exceeded.
func TestAHotLimitIsDecidedInHand(t *testing.T) {
	for _, text := range []string{"20000/10s fixed_window", "20000/10s", "20000/10s burst 20000"} {
		t.Run(text, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, l, books := newFar(t, 500*time.Microsecond), limittest.New(t, text), &ledger{}
				nodes := []*Store{f.node(Options{}), f.node(Options{}), f.node(Options{})}
				start := time.Now()
				var all sync.WaitGroup
				for time.Since(start) < time.Second {
					for _, s := range nodes {
						all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
					}
					time.Sleep(300 * time.Microsecond)
				}
				all.Wait()
				calls, _ := f.calls()
				if calls > books.requests/20 || books.denied+books.failed > 0 {
					t.Errorf("%d calls for %d requests, %d denied, %d failed", calls, books.requests, books.denied, books.failed)
				}
				var inHand, leased int64
				for _, s := range nodes {
					inHand, leased = inHand+s.Stats().InHand, leased+int64(s.Stats().Leased)
				}
				if leased < int64(books.requests)*9/10 || inHand == 0 {
					t.Errorf("%d of %d requests were leased, %d units in hand", leased, books.requests, inHand)
				}
				for _, s := range nodes {
					f.close(s)
				}
				got, _ := f.readUsed("a")
				want := books.admitted["a"]
				// tokens that were refilled while units were leased are not credited
				if got != want && !(l.Algorithm() == counter.TokenBucket && got > want) {
					t.Errorf("the store has charged %d, %d were admitted", got, want)
				}
			})
		})
	}
}

// TestAnIdleLimitMakesOneCallPerRequest: under little traffic each request makes a call, as without
// leases, and no units are held.
func TestAnIdleLimitMakesOneCallPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "1000/1m"), &ledger{}
		nodes := []*Store{f.node(Options{}), f.node(Options{})}
		for i := range 300 {
			_ = books.ask(nodes[i%2], leasedOf("a", l, 1))
			time.Sleep(100 * time.Millisecond)
		}
		if calls, _ := f.calls(); calls != 300 || books.admitted["a"] != 300 {
			t.Errorf("%d calls for 300 requests, %d admitted", calls, books.admitted["a"])
		}
		for _, s := range nodes {
			if got := s.Stats(); got.InHand != 0 || got.Returned != 0 || got.Calls != 150 {
				t.Errorf("%+v", got)
			}
			f.close(s)
		}
	})
}

// TestIdleUnitsGoBack: all idle units are refunded, and no background work remains after that.
func TestIdleUnitsGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "100000/1h"), &ledger{}
		s := f.node(Options{})
		defer f.close(s)
		warm(t, s, books, leasedOf("a", l, 1))
		time.Sleep(400 * time.Millisecond)
		if n := s.Stats().InHand; n != 0 {
			t.Errorf("%d units are in hand of an idle counter", n)
		}
		if got, _ := f.readUsed("a"); got != books.admitted["a"] || s.Stats().Returned == 0 {
			t.Errorf("the store has charged %d, %d were admitted", got, books.admitted["a"])
		}
		s.life.mu.Lock()
		defer s.life.mu.Unlock()
		if s.ticking {
			t.Error("the ticker runs for nothing")
		}
	})
}

// warm makes requests until the store holds leased units.
func warm(t testing.TB, s *Store, books *ledger, c counter.Check) {
	t.Helper()
	for range 1000 {
		_ = books.ask(s, c)
		time.Sleep(200 * time.Microsecond)
	}
	if s.Stats().InHand == 0 {
		t.Fatal("nothing is in hand after a thousand requests")
	}
}

// TestWaitingRequestsAreNotLate: a waiting request is never late, neither because of a call that
// hangs nor because of its own call.
func TestWaitingRequestsAreNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "600/1h"), &ledger{}
		s := f.node(Options{Timeout: 30 * time.Millisecond, WaitMax: farTimeout + time.Millisecond})
		f.set(func() { f.hang = true })
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				start := time.Now()
				err := books.ask(s, leasedOf("a", l, 1))
				if !errors.Is(err, counter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("behind a call that hangs: %v", err)
				}
				if took := time.Since(start); took > 2*farTimeout {
					t.Errorf("after %v", took)
				}
			})
		}
		all.Wait()
		f.set(func() { f.hang = false })
		if err := books.ask(s, leasedOf("a", l, 1)); err != nil || books.admitted["a"] != 1 {
			t.Errorf("when the store answers again: %v, %d admitted", err, books.admitted["a"])
		}
		f.close(s)
	})
}

// TestWaitingRequestsFailWithTheCall: if the store does not answer a call, the requests that wait
// for the call fail too, and do not call the store. If the call has stale boundaries or panics,
// each of them makes its own call.
func TestWaitingRequestsFailWithTheCall(t *testing.T) {
	for name, what := range map[string]struct {
		answer error
		calls  int64
	}{
		"the store is away": {counter.ErrUnavailable, 1},
		"stale boundaries":  {errors.Join(counter.ErrUnavailable, counter.ErrStale), 100},
		"a panic":           {nil, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, asked := limittest.New(t, "600/1h"), atomic.Int64{}
				inner := &between{}
				inner.instead(func(context.Context, []counter.Check, []counter.Result) error {
					asked.Add(1)
					time.Sleep(time.Millisecond)
					if what.answer == nil {
						panic("as the test wants it")
					}
					return what.answer
				})
				s, err := New(inner, Options{Timeout: time.Second})
				if err != nil {
					t.Fatal(err)
				}
				var all sync.WaitGroup
				for range 100 {
					all.Go(func() {
						defer func() {
							if v := recover(); (v != nil) != (what.answer == nil) {
								t.Errorf("recovered %v", v)
							}
						}()
						if err := (&ledger{}).ask(s, leasedOf("a", l, 1)); !errors.Is(err, what.answer) {
							t.Errorf("%v, want %v", err, what.answer)
						}
					})
				}
				all.Wait()
				if n := asked.Load(); n != what.calls {
					t.Errorf("%d calls, want %d", n, what.calls)
				}
				if err := s.Close(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestCanceledRequestsLeaveNoState: a waiting request whose context is done leaves no state.
func TestCanceledRequestsLeaveNoState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, 10*time.Millisecond), limittest.New(t, "600/1h"), &ledger{}
		s := f.node(Options{})
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
		synctest.Wait()
		for i := range 10 {
			all.Go(func() {
				checks, results := []counter.Check{leasedOf("a", l, 1)}, make([]counter.Result, 1)
				if i%2 == 0 {
					_ = books.ask(s, checks...)
				} else if err := s.Take(ctx, checks, results); !errors.Is(err, context.Canceled) || !errors.Is(err, counter.ErrUnavailable) {
					t.Errorf("a context that is done: %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		// no units were requested for requests that no longer waited
		if got, _ := f.readUsed("a"); got != 6 || books.admitted["a"] != 6 {
			t.Errorf("%d charged and %d admitted, want 6", got, books.admitted["a"])
		}
		f.close(s)
		calls, _ := f.calls()
		if calls != 2 {
			t.Errorf("%d calls, want 2", calls)
		}
	})
}

// TestACallersDeadlineIsNoOutage: a request whose own deadline passes while it waits for another
// call fails with ErrOverloaded and not with ErrUnavailable, although the store has not answered
// anything yet.
func TestACallersDeadlineIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, 10*time.Millisecond), limittest.New(t, "600/1h"), &ledger{}
		s := f.node(Options{})
		var all sync.WaitGroup
		all.Go(func() { _ = books.ask(s, leasedOf("a", l, 1)) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		defer cancel()
		err := s.Take(ctx, []counter.Check{leasedOf("a", l, 1)}, make([]counter.Result, 1))
		if !errors.Is(err, counter.ErrOverloaded) || errors.Is(err, counter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a deadline before the answer: %v", err)
		}
		all.Wait()
		f.close(s)
	})
}
