// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/seed"
)

// settledCheck returns a check of a rule whose charges can be corrected.
func settledCheck(t *testing.T, key string, count, cost int64) counter.Check {
	t.Helper()
	c := limited(t, key, count, cost, counter.OnErrorAllow)
	c.Refundable = true
	return c
}

// world.take sends one check and returns the result.
func (w *world) take(t *testing.T, c counter.Check) counter.Result {
	t.Helper()
	results := make([]counter.Result, 1)
	if err := w.Take(t.Context(), []counter.Check{c}, results); err != nil {
		t.Fatal(err)
	}
	return results[0]
}

// world.correct settles a charge with its real cost, and returns the result.
func (w *world) correct(c counter.Check, charge counter.Result, cost int64) (counter.Result, error) {
	results := make([]counter.Result, 1)
	switch {
	case cost > charge.Granted:
		c.Op, c.Cost = counter.OpForce, cost-charge.Granted
	case cost < charge.Granted:
		c.Op, c.Cost, c.Receipt = counter.OpRefund, charge.Granted-cost, charge.Receipt
	default:
		return results[0], nil
	}
	return results[0], w.Corrections().Take(context.Background(), []counter.Check{c}, results)
}

// TestTheRealCostIsOwed: a request that this process admitted is charged its real cost. It does not
// matter whether the response arrives before or after the store is back, or before or after the
// debt is charged.
func TestTheRealCostIsOwed(t *testing.T) {
	for _, cost := range []int64{1, 10, 70} {
		for when, before := range map[string]func(*world, counter.Check){
			"during the outage": func(*world, counter.Check) {},
			"after it":          func(w *world, _ counter.Check) { w.inner.err = nil },
			"once it is charged": func(w *world, c counter.Check) {
				w.inner.err = nil
				c.Cost = 0
				w.take(t, c)
			},
		} {
			w := newWorld(t, 1)
			check := settledCheck(t, "x", 100, 10)
			w.inner.err = errAway
			charge := w.take(t, check)
			if charge.Granted != 10 || charge.Receipt >= 0 || !charge.Local {
				t.Fatalf("%+v", charge)
			}
			before(w, check)
			result, err := w.correct(check, charge, cost)
			if err != nil || result.Local != (cost == 70 && w.inner.err != nil) {
				t.Errorf("%d %s: %+v %v", cost, when, result, err)
			}
			w.inner.err = nil
			look := check
			look.Cost = 0
			w.take(t, look)
			if used := w.used(&check); used != cost || w.owed.count.Load() != 0 {
				t.Errorf("%d %s: %d units are charged, %d counters owe", cost, when, used, w.owed.count.Load())
			}
		}
	}
}

// TestTheRealCostCountsInMemory: during the outage, the real cost counts against the units that
// this process may admit.
func TestTheRealCostCountsInMemory(t *testing.T) {
	for nodes, want := range map[int]int{1: 3, 2: 2} {
		w := newWorld(t, nodes)
		w.inner.err = errAway
		check, admitted := settledCheck(t, "x", 100, 10), 0
		check.OnError = counter.OnErrorLocal
		for range 20 {
			charge := w.take(t, check)
			if charge.Denied {
				continue
			}
			admitted++
			if _, err := w.correct(check, charge, 40); err != nil {
				t.Fatal(err)
			}
		}
		if admitted != want {
			t.Errorf("%d nodes: %d admitted, want %d", nodes, admitted, want)
		}
	}
	w := newWorld(t, 1)
	w.inner.err = errAway
	check, admitted := settledCheck(t, "x", 100, 10), 0
	for range 200 {
		charge := w.take(t, check)
		if charge.Denied {
			continue
		}
		admitted++
		if _, err := w.correct(check, charge, 1); err != nil {
			t.Fatal(err)
		}
	}
	if admitted != 91 { // with 91 used units, 10 more for the next request do not fit
		t.Errorf("%d admitted of 100 that cost 1", admitted)
	}
}

// TestUnknownChargesAreNotRefunded: the store might not have charged the units of a call that was
// sent and not answered, so they are not refunded. The test loses two such calls: that of a
// request, and the charge of a debt.
func TestUnknownChargesAreNotRefunded(t *testing.T) {
	w := newWorld(t, 1)
	check := settledCheck(t, "x", 1000, 100)
	w.inner.err = errLost
	lost := w.take(t, check)
	if lost.Granted != 100 || lost.Receipt != 0 {
		t.Fatalf("%+v", lost)
	}
	w.inner.err = errAway
	early, late := w.take(t, check), counter.Result{}
	w.inner.err = errLost // the charge of the debt is sent, and not answered
	w.take(t, check)
	w.inner.err = errAway
	late = w.take(t, check)
	for _, charge := range []counter.Result{lost, early} {
		if _, err := w.correct(check, charge, 1); err != nil {
			t.Error(err)
		}
	}
	w.inner.err = nil
	w.take(t, check)
	if used := w.used(&check); used != 300 {
		t.Errorf("%d units are charged, want those of three requests", used)
	}
	if _, err := w.correct(check, late, 400); err != nil {
		t.Error(err)
	}
	if used := w.used(&check); used != 600 {
		t.Errorf("%d units are charged", used)
	}
}

// TestCorrectionsAddUp: in the end, a counter holds the real costs of all requests plus the units
// whose refunds failed, no matter when the store was unavailable.
func TestCorrectionsAddUp(t *testing.T) {
	random := seed.Random(t)
	for round := range 300 {
		w := newWorld(t, 1)
		store := &lossy{Store: w.inner.Store}
		w.Store = New(store, Options{Counts: NewCounts(w.local)})
		check := settledCheck(t, "x", 1_000_000, 100)
		var charges []counter.Result
		var least, most int64
		settleOne := func() {
			if len(charges) == 0 {
				return
			}
			i := random.IntN(len(charges))
			charge, cost := charges[i], random.Int64N(200)
			charges = append(charges[:i], charges[i+1:]...)
			least += cost - charge.Granted
			if _, err := w.correct(check, charge, cost); err == nil {
				most += cost - charge.Granted
			}
		}
		for range random.IntN(80) {
			store.fails = random.IntN(2) // the call succeeds, or fails before it is sent
			if random.IntN(2) == 0 {
				charges = append(charges, w.take(t, check))
				least, most = least+100, most+100
			} else {
				settleOne()
			}
		}
		store.fails = 0
		look := check
		look.Cost = 0
		w.take(t, look)
		if used := w.used(&check); used < least || used > most {
			t.Fatalf("round %d: %d units are charged, want %d to %d", round, used, least, most)
		}
	}
}
