// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
)

// readCalls returns the keys and operations of a request's calls, as the inner store receives them.
func readCalls(s *Store, t testing.TB, checks ...counter.Check) (asked []string, results []counter.Result) {
	t.Helper()
	inner, before := s.inner, s.inner
	var mu sync.Mutex
	spy := &between{}
	spy.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		mu.Lock()
		defer mu.Unlock()
		for i := range checks {
			asked = append(asked, fmt.Sprintf("%s op %d cost %d guard %d", checks[i].Key, checks[i].Op, checks[i].Cost, checks[i].Guard))
		}
		return inner.Take(ctx, checks, results)
	})
	s.inner = spy
	defer func() { s.inner = before }()
	results = make([]counter.Result, len(checks))
	if err := s.Take(context.Background(), checks, results); err != nil {
		t.Fatal(err)
	}
	return asked, results
}

// TestOnlyUnheldLimitsCallTheStore: a request has limits with held units, an exact limit, a
// log_only limit and a penalty, in any order. The store is called only for those without held
// units.
func TestOnlyUnheldLimitsCallTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "100000/1h"), &ledger{}
		s := f.node(Options{})
		defer f.close(s)
		hot := leasedOf("hot", l, 1)
		warm(t, s, books, hot)
		shadow := takeOf("shadow", l, 1)
		shadow.Shadow = true
		penalty := counter.Check{Key: []byte("penalty"), Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 9, Multipliers: []int64{1}}}
		exact := takeOf("exact", limittest.New(t, "3/1h"), 1)
		exact.Guard, exact.Violation = 3, 7
		inHand := s.Stats().InHand
		for i := range 5 {
			asked, results := readCalls(s, t, hot, shadow, penalty, exact)
			want := []string{"shadow op 0 cost 1 guard 0", "penalty op 0 cost 0 guard 0", "exact op 0 cost 1 guard 2"}
			if diff := cmp.Diff(want, asked); diff != "" {
				t.Fatalf("asked (-want +got):\n%s", diff)
			}
			granted := int64(1)
			if i >= 3 {
				granted = 0
			} else {
				inHand--
			}
			if r := results[0]; r.Denied || r.Granted != granted || (r.Receipt != 0) != (granted > 0) || results[3].Granted != granted ||
				results[1].Granted != granted || r.Remaining == 0 || r.At == 0 {
				t.Errorf("request %d: %+v", i, results)
			}
			if got := s.Stats().InHand; got != inHand {
				t.Errorf("request %d: %d units in hand, want %d", i, got, inHand)
			}
		}
		look := penalty
		look.Op = counter.OpLook
		if _, r := readCalls(s, t, look); r[0].Violations != 1 {
			t.Errorf("%d violations, want 1", r[0].Violations)
		}
	})
}

// TestViolationsOfLeasedLimitsAreRecorded: a violation is recorded in the store once, even if all
// its denials come from memory.
func TestViolationsOfLeasedLimitsAreRecorded(t *testing.T) {
	for name, o := range map[string]Options{"with memory": {}, "without": {DenialsMax: -1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, books := newFar(t, time.Millisecond), &ledger{}
				s := f.node(o)
				defer f.close(s)
				penalty := counter.Check{Key: []byte("penalty"), Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 99, Multipliers: []int64{1}}}
				a, b := leasedOf("a", limittest.New(t, "20/1h"), 1), leasedOf("b", limittest.New(t, "30/1h fixed_window"), 1)
				a.Guard, a.Violation, b.Guard, b.Violation = 1, 5, 1, 6
				var all sync.WaitGroup
				for range 200 {
					all.Go(func() { _ = books.ask(s, penalty, a) })
					all.Go(func() { _ = books.ask(s, penalty, b) })
					time.Sleep(100 * time.Microsecond)
				}
				all.Wait()
				look := penalty
				look.Op = counter.OpLook
				r := make([]counter.Result, 1)
				if err := s.Take(context.Background(), []counter.Check{look}, r); err != nil || r[0].Violations != 2 {
					t.Errorf("%v, %d violations, want 2", err, r[0].Violations)
				}
				if books.admitted["a"] != 20 || books.admitted["b"] != 30 || books.denied != 350 {
					t.Errorf("%v were admitted and %d denied", books.admitted, books.denied)
				}
				if calls, _ := f.calls(); o.DenialsMax == 0 && calls > 120 {
					t.Errorf("%d calls", calls)
				}
			})
		})
	}
}

// TestAResetDropsHeldUnits: after a reset, held units are neither used nor refunded.
func TestAResetDropsHeldUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "3000/1h fixed_window"), &ledger{}
		s := f.node(Options{})
		warm(t, s, books, leasedOf("a", l, 1))
		reset := takeOf("a", l, 0)
		reset.Op = counter.OpReset
		if err := books.ask(s, reset); err != nil || s.Stats().InHand != 0 {
			t.Errorf("%v, %d units are in hand of a counter that was reset", err, s.Stats().InHand)
		}
		look := takeOf("a", l, 3000)
		look.Op = counter.OpLook
		time.Sleep(time.Second)
		r := make([]counter.Result, 1)
		if err := s.Take(context.Background(), []counter.Check{look}, r); err != nil || r[0].Remaining != 3000 {
			t.Errorf("%v, %d remain", err, r[0].Remaining)
		}
		f.close(s)
	})
}

// TestADenialByALeasedLimitIsForgotten: a refund through this store ends a remembered denial.
func TestADenialByALeasedLimitIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, l, books := newFar(t, time.Millisecond), limittest.New(t, "3/1h fixed_window"), &ledger{}
		s := f.node(Options{})
		a := leasedOf("a", l, 1)
		var results [4]counter.Result
		for i := range results {
			if err := s.Take(context.Background(), []counter.Check{a}, results[i:i+1]); err != nil {
				t.Fatal(err)
			}
		}
		f.calls()
		if _ = books.ask(s, a); books.denied != 1 || !results[3].Denied {
			t.Error("a fourth unit of three is granted")
		}
		if calls, _ := f.calls(); calls != 0 {
			t.Errorf("%d calls for a denial that is known", calls)
		}
		back := takeOf("a", l, 2)
		back.Op, back.Receipt = counter.OpRefund, results[0].Receipt
		_ = books.ask(s, back)
		// two of the three units belong to the refund, which the ledger counts as a request
		if _ = books.ask(s, a); books.admitted["a"] != 3 {
			t.Errorf("%d admitted after units came back", books.admitted["a"])
		}
		f.close(s)
	})
}

// TestHeldCountersAreBounded: a bounded number of counters is held, and the busy one is among them.
func TestHeldCountersAreBounded(t *testing.T) {
	const most = 2048
	clients := 10*most + racescale.Fewer(280_000)
	p, l := open(t, Options{CountersMax: most, DenialsMax: -1}), limittest.New(t, "1000000/1h")
	hot := leasedOf("hot", l, 1)
	busy := func() {
		for range 50 {
			p.clock.Add(100)
			p.ask(hot)
		}
	}
	for p.Stats().InHand == 0 {
		busy()
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var before int64
	p.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		if string(checks[0].Key) == "hot" {
			return p.inner.of.Take(ctx, checks, results)
		}
		results[0] = counter.Result{At: noon, Granted: checks[0].Cost, Receipt: noon, Remaining: 7}
		return nil
	})
	checks, results := []counter.Check{leasedOf("", l, 1)}, make([]counter.Result, 1)
	leased := uint64(0)
	for i := range clients {
		checks[0].Key = fmt.Appendf(checks[0].Key[:0], "client %d", i)
		if err := p.Take(context.Background(), checks, results); err != nil || results[0].Granted != 1 {
			t.Fatal(results, err)
		}
		if i == 10*most {
			before, leased = heap(), p.Stats().Leased
		}
		if i > 10*most && i%100 == 0 {
			busy()
		}
	}
	if grown := heap() - before; grown > 1<<18 {
		t.Errorf("%d clients took %d bytes", clients, grown)
	}
	n := 0
	for i := range p.counters.shards {
		n += len(p.counters.shards[i].byID)
	}
	if n > most {
		t.Errorf("%d counters are held, want at most %d", n, most)
	}
	asked := uint64((clients - 10*most) / 100 * 50)
	if got := p.Stats().Leased - leased; got < asked*9/10 {
		t.Errorf("%d of %d requests of the busy counter were leased", got, asked)
	}
}

// TestDenialsOfUnheldCountersAreRemembered: an attack by more clients than there is room for
// counters costs one call per client, not one per request.
func TestDenialsOfUnheldCountersAreRemembered(t *testing.T) {
	const clients = 5000
	p, l := open(t, Options{CountersMax: 1}), limittest.New(t, "1/1h")
	round := func() {
		t.Helper()
		for i := range clients {
			p.ask(leasedOf(fmt.Sprint("client ", i), l, 1))
		}
	}
	round()
	round()
	p.calls(2*clients, "until all are refused")
	p.setClocks(DenialMax / 2)
	round()
	if n := p.inner.calls.Swap(0); n > clients/100 {
		t.Errorf("%d calls for %d clients that were refused just now", n, clients)
	}
}

// TestTheNextRequestMakesTheCall: if a request was about to call the store for one limit, but
// another limit denies it, the next request makes the call.
func TestTheNextRequestMakesTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, books := newFar(t, time.Millisecond), &ledger{}
		s := f.node(Options{})
		a, full := leasedOf("a", limittest.New(t, "100/1h"), 1), leasedOf("full", limittest.New(t, "1/1h"), 1)
		_ = books.ask(s, full)
		_ = books.ask(s, full)
		f.calls()
		for range 3 {
			_ = books.ask(s, a, full)
		}
		if calls, _ := f.calls(); calls != 0 || books.denied != 4 {
			t.Errorf("%d calls, %d denied", calls, books.denied)
		}
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { _ = books.ask(s, a) })
			all.Go(func() { _ = books.ask(s, a, full) })
		}
		all.Wait()
		f.close(s)
		if used, _ := f.readUsed("a"); used != 20 || books.admitted["a"] != 20 || books.failed > 0 {
			t.Errorf("%d used, %d admitted, %d failed", used, books.admitted["a"], books.failed)
		}
	})
}

// TestManyDenialsMeetNoDeadline: if many requests need one leased limit and another limit denies
// each of them, they end with a denial and not with an expired deadline.
func TestManyDenialsMeetNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, rtt = 300, 2 * time.Millisecond
		f, books := newFar(t, rtt), &ledger{}
		// No denials are remembered, as if each request were the client's first in a second.
		s := f.node(Options{DenialsMax: -1})
		all, own := leasedOf("all", limittest.New(t, "1000000/1h"), 1), limittest.New(t, "1/1h")
		var under sync.WaitGroup
		each := func(checks ...counter.Check) {
			*books = ledger{}
			for i := range clients {
				under.Go(func() { _ = books.ask(s, append(checks, takeOf(fmt.Sprint("client ", i), own, 1))...) })
			}
			under.Wait()
		}
		each()
		if each(all); books.failed > 0 || books.denied != clients || books.slowest > 4*rtt {
			t.Errorf("%d of %d denied, %d failed, the last after %v", books.denied, clients, books.failed, books.slowest)
		}
		for range 100 {
			under.Go(func() { _ = books.ask(s, all) })
		}
		if under.Wait(); books.admitted["all"] != 100 {
			t.Errorf("%d admitted of those whom nothing denies", books.admitted["all"])
		}
		f.close(s)
		if used, _ := f.readUsed("all"); used != 100 {
			t.Errorf("the store has charged %d, want 100", used)
		}
	})
}
