// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
)

// TestTakeNowNeverAsks: TakeNow answers from held units and from remembered denials, as Take would,
// and charges nothing if the inner store must be called.
func TestTakeNowNeverAsks(t *testing.T) {
	p, l := open(t, Options{}), limittest.New(t, "100000/31d fixed_window")
	c, results := leasedOf("a", l, 1), make([]counter.Result, 1)
	checks := []counter.Check{c}
	if p.TakeNow(checks, results) || p.inner.calls.Load() != 0 {
		t.Fatal("a counter without units was decided, or the store was asked")
	}
	for p.Stats().InHand < 100 {
		p.clock.Add(100)
		p.ask(c)
	}
	for range p.Stats().InHand {
		if !p.TakeNow(checks, results) || results[0].Granted != 1 {
			t.Fatalf("%+v with units in hand", results[0])
		}
	}
	one := counter.Check{Key: []byte("b"), Limit: limittest.New(t, "1/31d fixed_window"), Cost: 1}
	p.ask(one)
	p.ask(one) // this call is denied, and the denial is remembered
	calls := p.inner.calls.Load()
	// A few calls, chosen at random, are left to Take, which calls the store if the answer is not
	// remembered.
	decided := false
	for range 5 {
		decided = decided || p.TakeNow([]counter.Check{one}, results)
	}
	if !decided || !results[0].Denied || p.inner.calls.Load() != calls {
		t.Errorf("a remembered denial: %+v", results[0])
	}
}

// TestTakeNowDoesNotAllocate: TakeNow decides thousands of requests in a row without an allocation.
// On a busy machine few units may be held, because they are taken slowly, or they may expire. The
// test then takes more units and tries again.
func TestTakeNowDoesNotAllocate(t *testing.T) {
	s, checks := newFilled(t, 2)
	results, takes := make([]counter.Result, 2), racescale.Fewer(10_000)
	for end := time.Now().Add(patience); ; {
		decided := 0
		n := testing.AllocsPerRun(takes, func() {
			if s.TakeNow(checks, results) {
				decided++
			}
		})
		if n != 0 {
			t.Fatalf("%v allocations a request, want none", n)
		}
		if decided >= takes*9/10 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d requests were decided, after %+v", decided, takes, s.Stats())
		}
		for range 10 * takes {
			if err := s.Take(context.Background(), checks, results); err != nil {
				t.Fatal(err)
			}
		}
	}
}
