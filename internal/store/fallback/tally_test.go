// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
)

// TestAnAnswerBesideTheFallbackIsTallied: the tally counts units that the store admits, and units
// that this process admitted for calls with an unknown outcome. The store did not execute those
// calls.
func TestAnAnswerBesideTheFallbackIsTallied(t *testing.T) {
	for _, algorithm := range []string{"fw", "sw", "sl", "tb"} {
		w := newWorld(t, 1)
		check := counter.Check{Key: []byte("rl1:a:r:{x}:1h"), Limit: limittest.New(t, "10/1h "+algorithm), Cost: 1, OnError: counter.OnErrorAllow}
		w.inner.err = errLost
		if got := w.admits(t, 7, check); got != 7 {
			t.Errorf("%s: the fallback admits %d of 7", algorithm, got)
		}
		w.inner.err = nil
		if got := w.admits(t, 10, check); got != 3 {
			t.Errorf("%s: the store admits %d beside 7, want 3", algorithm, got)
		}
		if got := w.used(&check); got < 3 {
			t.Errorf("%s: the store charged %d", algorithm, got)
		}
	}
}

// TestATallyDeniesAWholeCall: one limit that is used up in the tally denies the call, and its
// result says how long to wait.
func TestATallyDeniesAWholeCall(t *testing.T) {
	w := newWorld(t, 1)
	checks := []counter.Check{limited(t, "a", 5, 1, counter.OnErrorAllow), limited(t, "b", 100, 1, counter.OnErrorAllow)}
	w.inner.err = errLost
	w.admits(t, 5, checks...)
	w.inner.err = nil
	results := make([]counter.Result, 2)
	if err := w.Take(context.Background(), checks, results); err != nil {
		t.Fatal(err)
	}
	if !results[0].Denied || results[0].Wait <= 0 || !results[0].Local || results[1].Denied || results[1].Granted != 0 {
		t.Errorf("results: %+v", results)
	}
}

// TestAResetEndsATally: after a reset, by this process or by another, the whole limit is available
// again, minus the units whose outcome is unknown.
func TestAResetEndsATally(t *testing.T) {
	for _, own := range []bool{true, false} {
		w := newWorld(t, 1)
		check := limited(t, "x", 10, 1, counter.OnErrorAllow)
		w.admits(t, 4, check)
		w.inner.err = errLost
		w.admits(t, 2, check)
		w.inner.err = nil
		w.admits(t, 10, check)
		reset, in, want := check, counter.Store(w.inner), 8
		if reset.Op = counter.OpReset; own {
			in, want = w.Store, 10
		}
		if err := in.Take(context.Background(), []counter.Check{reset}, make([]counter.Result, 1)); err != nil {
			t.Fatal(err)
		}
		if got := w.admits(t, 20, check); got != want {
			t.Errorf("own reset %t: %d admitted, want %d", own, got, want)
		}
	}
}

// TestARefundReducesATally: a refund of a charge in the store reduces the tally too.
func TestARefundReducesATally(t *testing.T) {
	w := newWorld(t, 1)
	check := limited(t, "x", 10, 1, counter.OnErrorAllow)
	check.Refundable = true
	w.inner.err = errLost
	w.admits(t, 6, check)
	w.inner.err = nil
	checks, results := []counter.Check{check}, make([]counter.Result, 1)
	for range 20 {
		if err := w.Take(context.Background(), checks, results); err != nil || results[0].Denied {
			t.Fatalf("%+v, error %v", results, err)
		}
		refund := check
		refund.Op, refund.Receipt = counter.OpRefund, results[0].Receipt
		if err := w.Corrections().Take(context.Background(), []counter.Check{refund}, make([]counter.Result, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestALeaseIsCutByTheTally: no more units are leased than remain in the tally.
func TestALeaseIsCutByTheTally(t *testing.T) {
	w := newWorld(t, 1)
	check := limited(t, "x", 10, 1, counter.OnErrorAllow)
	w.inner.err = errLost
	w.admits(t, 6, check)
	w.inner.err = nil
	check.Op, check.Min, check.Max, check.ShareMille, check.Age = counter.OpUpTo, 1, 10, 1000, counter.Second
	results := make([]counter.Result, 1)
	if err := w.Take(context.Background(), []counter.Check{check}, results); err != nil {
		t.Fatal(err)
	}
	if results[0].Denied || results[0].Granted != 4 {
		t.Errorf("granted %d of the 4 that are left: %+v", results[0].Granted, results[0])
	}
}

// TestATallyEnds: when the window of the last request that was decided without the store is over,
// the counter has no tally.
func TestATallyEnds(t *testing.T) {
	w := newWorld(t, 1)
	now := time.Now()
	w.options.Now = func() time.Time { return now }
	check := limited(t, "x", 10, 1, counter.OnErrorAllow)
	w.inner.err = errLost
	w.admits(t, 1, check)
	w.inner.err = nil
	if w.admits(t, 1, check); w.tallies.count.Load() != 1 {
		t.Errorf("%d counters have a tally, want 1", w.tallies.count.Load())
	}
	now = now.Add(32 * 24 * time.Hour)
	if w.admits(t, 1, check); w.tallies.count.Load() != 0 {
		t.Errorf("%d counters have a tally after the window, want 0", w.tallies.count.Load())
	}
}

// TestTalliesAreBounded: the number of tallies has a bound.
func TestTalliesAreBounded(t *testing.T) {
	w := newWorld(t, 1)
	w.inner.err = errLost
	for i := range TalliesMax + 10_000 {
		w.admits(t, 1, limited(t, fmt.Sprint(i), 10, 1, counter.OnErrorAllow))
	}
	kept := 0
	for i := range w.tallies.shards {
		kept += len(w.tallies.shards[i].byKey)
	}
	if count := w.tallies.count.Load(); kept > TalliesMax || kept < TalliesMax/2 || int(count) != kept {
		t.Errorf("%d tallies are kept, and %d counted", kept, count)
	}
}

// TestMadeUpClientsDisplaceNoTally: a client that used up its limit while the store failed does not
// get a second allowance by making up more clients than the number of tallies.
func TestMadeUpClientsDisplaceNoTally(t *testing.T) {
	w := newWorld(t, 1)
	check := limited(t, "x", 10, 1, counter.OnErrorAllow)
	w.inner.err = errLost
	if got := w.admits(t, 12, check); got != 10 {
		t.Fatalf("the fallback admits %d of 10", got)
	}
	own := w.tallyShard(check.Key)
	for i, named := 0, 0; named < 4*TalliesMax/tallyShards; i++ { // as many as 262,144 over all shards
		if c := limited(t, fmt.Sprint(i), 10, 1, counter.OnErrorAllow); w.tallyShard(c.Key) == own {
			w.admits(t, 1, c)
			named++
		}
	}
	w.inner.err = nil
	if got := w.admits(t, 10, check); got != 0 {
		t.Errorf("the store admits %d more", got)
	}
}

// TestATalliedAnswerAllocatesNothing: tallying an answer does not allocate.
func TestATalliedAnswerAllocatesNothing(t *testing.T) {
	w := newWorld(t, 1)
	checks, results := []counter.Check{limited(t, "x", 1<<30, 1, counter.OnErrorAllow)}, make([]counter.Result, 1)
	w.inner.err = errLost
	w.admits(t, 1, checks...)
	w.inner.err = nil
	most := 0.0
	if racescale.Fewer(1000) < 1000 {
		most = 8 // the race detector empties pools
	}
	if allocs := testing.AllocsPerRun(1000, func() { _ = w.Take(context.Background(), checks, results) }); allocs > most {
		t.Errorf("%v allocations", allocs)
	}
}
