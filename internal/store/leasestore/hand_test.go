// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
)

// newFilled returns a store that holds many units of n counters. It also returns the checks of a
// request that all these counters limit.
func newFilled(t testing.TB, n int) (*Store, []counter.Check) {
	t.Helper()
	inner, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(inner, Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	l := limittest.New(t, "1000000000000/31d fixed_window")
	var checks []counter.Check
	for i := range n {
		checks = append(checks, leasedOf(fmt.Sprint(i, "rl1:shop:api:{ip:2001:db8:1234:5678::}:60s:sw"), l, 1))
	}
	results := make([]counter.Result, n)
	for deadline := time.Now().Add(patience); s.counts.leased.Load() < 100_000; {
		if err := s.Take(context.Background(), checks, results); err != nil || time.Now().After(deadline) {
			t.Fatalf("%v, after %+v", err, s.Stats())
		}
	}
	return s, checks
}

func TestTheHandDoesNotAllocate(t *testing.T) {
	s, checks := newFilled(t, 2)
	results := make([]counter.Result, 2)
	before := s.Stats()
	takes := racescale.Fewer(100_000)
	n := testing.AllocsPerRun(takes, func() {
		if err := s.Take(context.Background(), checks, results); err != nil || results[0].Granted != 1 {
			t.Fatal(results, err)
		}
	})
	after := s.Stats()
	if n != 0 || after.Leased-before.Leased < uint64(takes)*99/100 {
		t.Errorf("%v allocations a request, want none; %d of %d were leased", n, after.Leased-before.Leased, takes)
	}
}

// TestNothingIsUsedAfterAStop: a process that holds units is suspended for a minute, in which the
// clock runs and the ticker does not. The first request afterwards makes a call.
func TestNothingIsUsedAfterAStop(t *testing.T) {
	for _, text := range []string{"10000/1s fixed_window", "10000/1s", "10000/1s burst 10000", "1000000/1h"} {
		p, l := open(t, Options{}), limittest.New(t, text)
		c := leasedOf("a", l, 1)
		for range 10_000 {
			p.clock.Add(100)
			p.ask(c)
			if p.Stats().InHand > 100 {
				break
			}
		}
		held := p.Stats().InHand
		p.inner.calls.Store(0)
		p.clock.Add(int64(counter.Minute))
		if n := p.Stats().InHand; held == 0 || n != 0 {
			t.Errorf("%s: %d units in hand before, %d after", text, held, n)
		}
		before := p.Stats().Leased
		if r := p.ask(c); r[0].Granted != 1 || p.Stats().Leased != before || p.inner.calls.Load() == 0 {
			t.Errorf("%s: %+v from the hand", text, r)
		}
	}
}

func BenchmarkHand(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprintf("limits=%d", n), func(b *testing.B) {
			s, checks := newFilled(b, n)
			results, before := make([]counter.Result, n), s.Stats()
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Take(context.Background(), checks, results); err != nil || results[0].Granted != 1 {
					b.Fatal(results, err)
				}
			}
			b.ReportMetric(float64(s.Stats().Calls-before.Calls)/float64(b.N), "calls/op")
		})
	}
}

func BenchmarkHandParallel(b *testing.B) {
	s, checks := newFilled(b, 1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		results := make([]counter.Result, 1)
		for pb.Next() {
			if err := s.Take(context.Background(), checks, results); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
