// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
)

// grants makes a call at the instant named sent, and answers the call at once. The answer grants 1
// + extra units, of which the extra ones are leased for the duration named age.
func grants(t *testing.T, c *Counter, l *counter.Limit, sent, age counter.Micros, extra int64, receipt counter.Micros) {
	t.Helper()
	a := prepareCall(t, c, sent, l, 1)
	a.Max, a.Age = a.Cost+extra, age
	c.Granted(sent, &a, &counter.Result{Granted: a.Max, Remaining: 500, Reset: counter.Second, Next: counter.Second, Receipt: receipt})
}

// TestPutBack: units that are put back return to the held ones while they can be used, and to the
// store otherwise. Units never join another charge, and units granted for a waiting request are
// never held.
func TestPutBack(t *testing.T) {
	var c Counter
	leases(t, &c, &fixed, 0, 1, counter.Second, 6)
	held := checkTake(t, &c, 2, &fixed, 4, Admit)
	c.PutBack(3, 2, held)
	if c.Held(3) != 4 {
		t.Errorf("%d units in hand, want 4", c.Held(3))
	}
	checkRefund(t, &c, 300*ms, 4)
	c.PutBack(301*ms, 2, held)
	if c.slots[0].units != 0 || c.slots[1].units != 0 {
		t.Error("units went back to where they are of no use")
	}
	checkRefund(t, &c, 302*ms, 2)

	grants(t, &c, &fixed, 400*ms, 200*ms, 6, begins+1)
	c.PutBack(401*ms, 1, held)
	if c.Held(401*ms) != 6 {
		t.Errorf("%d units in hand, want the 6 of the later charge", c.Held(401*ms))
	}
	c.used = 1000 // so that Tick does not refund them as surplus
	checkRefund(t, &c, 401*ms, 1)

	a := prepareCall(t, &c, 402*ms, &fixed, 1)
	checkTake(t, &c, 402*ms, &fixed, 7, Wait)
	a.Cost, a.Max = 8, 8
	c.Granted(403*ms, &a, &counter.Result{Granted: 8, Remaining: 500, Reset: counter.Second, Receipt: begins + 1})
	_, waited := c.Serve(403*ms, &fixed, 7)
	c.PutBack(404*ms, 7, waited)
	if c.Held(404*ms) != 6 {
		t.Errorf("%d units in hand, want 6: the store does not know the others as leased", c.Held(404*ms))
	}
	checkRefund(t, &c, 404*ms, 7)
}

// TestTheHandHoldsTwoCharges: when a third charge arrives, the slot that expires first is refunded.
// If that slot holds units of the same charge, it keeps its earlier deadline.
func TestTheHandHoldsTwoCharges(t *testing.T) {
	var c Counter
	grants(t, &c, &fixed, 0, 100*ms, 5, begins)
	grants(t, &c, &fixed, 10*ms, 300*ms, 6, begins+1)
	grants(t, &c, &fixed, 20*ms, 300*ms, 7, begins)
	if c.Held(99*ms) != 18 {
		t.Errorf("%d units in hand, want 18", c.Held(99*ms))
	}
	if c.Held(101*ms) != 6 {
		t.Errorf("%d units in hand, want 6: those that were joined end together", c.Held(101*ms))
	}
	c = Counter{}
	grants(t, &c, &fixed, 0, 100*ms, 5, begins)
	grants(t, &c, &fixed, 10*ms, 300*ms, 6, begins+1)
	grants(t, &c, &fixed, 20*ms, 300*ms, 7, begins+2)
	if c.Held(21*ms) != 13 {
		t.Errorf("%d units in hand, want 13", c.Held(21*ms))
	}
	c.used = 1000 // so that Tick does not refund them as surplus
	checkRefund(t, &c, 21*ms, 5)
}

// TestTheFirstToExpireIsUsedFirst: units of the charge that expires first are used first, whichever
// charge came first.
func TestTheFirstToExpireIsUsedFirst(t *testing.T) {
	for _, first := range []counter.Micros{100 * ms, 300 * ms} {
		var c Counter
		grants(t, &c, &fixed, 0, first, 5, begins)
		grants(t, &c, &fixed, 1, 200*ms, 5, begins+1)
		want := begins + counter.Micros(0)
		if first > 200*ms {
			want++
		}
		if held := checkTake(t, &c, 2, &fixed, 5, Admit); held.Receipt != want {
			t.Errorf("first lease for %v: used the charge %d, want %d", first, held.Receipt-begins, want-begins)
		}
	}
}

// TestClocksDrift: if a node's clock is slower than the store's by nearly a thousandth, an instant
// that seems to be just before the window's end is after it.
func TestClocksDrift(t *testing.T) {
	const end, slower = 200 * ms, 0.9991
	var c Counter
	leases(t, &c, &fixed, 0, 1, end, 5)
	if now := float64(end) * slower; c.Held(counter.Micros(now)) != 0 {
		t.Error("units are in hand after the window's end")
	}
	if c.Held(end-end/500) == 0 {
		t.Error("units are given up long before the window's end")
	}
}

// TestChecks tests the checks that Call.Fill and Refund.Fill make.
func TestChecks(t *testing.T) {
	var c Counter
	cold := prepareCall(t, &c, 0, &fixed, 3)
	check := counter.Check{Limit: &fixed, Op: counter.OpTake, Cost: 3, Lease: true}
	want := check
	cold.Fill(&check)
	if diff := cmp.Diff(want, check, cmp.AllowUnexported(counter.Limit{})); diff != "" {
		t.Errorf("a cold counter's check is not as it is without leases: %s", diff)
	}
	c.Failed(1)
	a := Call{Cost: 5, Min: 3, Max: 9, ShareMille: 200, Age: 250 * ms, own: 3}
	a.Fill(&check)
	want.Op, want.Cost, want.Min, want.Max, want.ShareMille, want.Age = counter.OpUpTo, 5, 3, 9, 200, 250*ms
	if diff := cmp.Diff(want, check, cmp.AllowUnexported(counter.Limit{})); diff != "" {
		t.Error(diff)
	}
	back := Refund{Units: 4, Receipt: begins, Age: 100 * ms}
	got := counter.Check{}
	back.Fill(&got)
	if diff := cmp.Diff(counter.Check{Op: counter.OpRefund, Cost: 4, Receipt: begins, Age: 100 * ms}, got); diff != "" {
		t.Error(diff)
	}
}

// TestUnitsFromBeforeAResetAreDropped: units that a request has reserved, and units of a call that
// might have been charged before the reset, are dropped. A refund would credit the new counter with
// units that others have used. Units that a change of the limit makes useless are refunded.
func TestUnitsFromBeforeAResetAreDropped(t *testing.T) {
	var c Counter
	leases(t, &c, &fixed, 0, 1, counter.Second, 6)
	held := checkTake(t, &c, 2, &fixed, 2, Admit)
	a := prepareCall(t, &c, 3, &fixed, 1)
	a.Max = 9
	checkTake(t, &c, 4, &fixed, 5, Wait)
	c.Forget(true)
	c.PutBack(5, 2, held)
	c.Granted(6, &a, &counter.Result{Granted: 9, Remaining: 500, Reset: counter.Second, Receipt: begins})
	checkServe(t, &c, 6, &fixed, 5, Ask)
	checkRefund(t, &c, 7, 0)
	if c.Held(7) != 0 {
		t.Errorf("%d units in hand", c.Held(7))
	}
	leases(t, &c, &fixed, 8, 9, counter.Second, 6)
	held = checkTake(t, &c, 10, &fixed, 2, Admit)
	c.Release(nil)
	c.PutBack(11, 2, held)
	checkRefund(t, &c, 12, 2)
}

// TestUnusedUnitsEndADenial: if the last units are granted to waiting requests that another limit
// then denies, the remembered denial ends.
func TestUnusedUnitsEndADenial(t *testing.T) {
	var c Counter
	a := prepareCall(t, &c, 0, &fixed, 1)
	c.Granted(1, &a, &counter.Result{Granted: 1, Remaining: 500, Reset: counter.Second, Receipt: begins})
	a = prepareCall(t, &c, 2, &fixed, 1)
	checkTake(t, &c, 2, &fixed, 1, Wait)
	checkTake(t, &c, 2, &fixed, 1, Wait)
	a.Cost, a.Max = 3, 3
	c.Granted(3, &a, &counter.Result{Granted: 2, Reset: counter.Second, Receipt: begins})
	_, waited := c.Serve(3, &fixed, 1)
	checkServe(t, &c, 3, &fixed, 1, Deny)
	c.PutBack(4, 1, waited)
	checkTake(t, &c, 5, &fixed, 1, Deny)
	checkRefund(t, &c, 6, 1)
	checkTake(t, &c, 7, &fixed, 1, Ask)
}
