// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestAnOverdueCall: a second call is made while a slow one is under way. The one that returns
// first serves the waiting requests. The other serves only the request that made it, and its other
// units are refunded. Only the later call can add units in advance.
func TestAnOverdueCall(t *testing.T) {
	answer := func(granted int64) *counter.Result {
		return &counter.Result{At: begins, Granted: granted, Remaining: 500, Reset: counter.Second, Receipt: begins}
	}
	for _, l := range []*counter.Limit{&fixed, &sliding, &bucket} {
		var c Counter
		checkTake(t, &c, 0, l, 1, Ask)
		first := prepareCall(t, &c, 0, l, 1)
		checkTake(t, &c, 1*ms, l, 2, Wait)
		checkTake(t, &c, 1*ms, l, 3, Wait)
		c.Leave(2)
		c.Overdue()
		second := prepareCall(t, &c, 9*ms, l, 2)
		if second.Cost != 5 || !c.Overtaken(&first) || c.Overtaken(&second) {
			t.Errorf("%+v asks for %d, want 5", second, second.Cost)
		}
		first.Max = 7
		// 4 units are refunded: 3 taken in advance, and 1 that is too few for the waiting request.
		c.Granted(10*ms, &first, answer(7))
		checkTake(t, &c, 10*ms, l, 1, Wait)
		c.Leave(1)
		checkServe(t, &c, 10*ms, l, 3, Wait)
		if c.Held(10*ms) != 0 {
			t.Errorf("%d units in hand of a call that was given up", c.Held(10*ms))
		}
		second.Max = 9
		c.Granted(11*ms, &second, answer(9))
		checkServe(t, &c, 11*ms, l, 3, Admit)
		if c.Held(11*ms) != 4 || c.queued != 0 {
			t.Errorf("%d units in hand, %d waited for", c.Held(11*ms), c.queued)
		}
		c.used = 1000 // so that Tick does not refund them as surplus
		checkRefund(t, &c, 11*ms, 6)
	}
}

// TestAnOverdueCallThatReturnsFirst: if the overdue call returns first, it serves the requests that
// wait for the other call.
func TestAnOverdueCallThatReturnsFirst(t *testing.T) {
	var c Counter
	checkTake(t, &c, 0, &fixed, 1, Ask)
	prepareCall(t, &c, 0, &fixed, 1)
	checkTake(t, &c, 1*ms, &fixed, 1, Wait)
	checkTake(t, &c, 1*ms, &fixed, 3, Wait)
	c.Leave(1)
	c.Overdue()
	second := prepareCall(t, &c, 9*ms, &fixed, 1)
	checkTake(t, &c, 10*ms, &fixed, 1, Wait)
	c.Leave(1)
	c.Overdue()
	third := prepareCall(t, &c, 19*ms, &fixed, 1)
	c.Granted(20*ms, &second, &counter.Result{At: begins, Granted: 4, Remaining: 500, Reset: counter.Second, Receipt: begins})
	checkServe(t, &c, 20*ms, &fixed, 3, Admit)
	checkTake(t, &c, 20*ms, &fixed, 1, Wait)
	c.Failed(21 * ms)
	if c.Overtaken(&third) {
		t.Error("the last call is not the one under way")
	}
	checkServe(t, &c, 21*ms, &fixed, 1, Ask)
}
