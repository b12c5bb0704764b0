// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core"
)

// TestAnOverdueCall has another one made beside it. Whichever returns first answers those that wait; the other is for the request
// that made it, and what else it brings goes back. Only the later one is taken from in advance.
func TestAnOverdueCall(t *testing.T) {
	answer := func(granted int64) *core.Result {
		return &core.Result{At: begins, Granted: granted, Remaining: 500, Reset: core.Second, Receipt: begins}
	}
	for _, l := range []*core.Limit{&fixed, &sliding, &bucket} {
		var c Counter
		takes(t, &c, 0, l, 1, Ask)
		first := asks(t, &c, 0, l, 1)
		takes(t, &c, 1*ms, l, 2, Wait)
		takes(t, &c, 1*ms, l, 3, Wait)
		c.Leave(2)
		c.Overdue()
		second := asks(t, &c, 9*ms, l, 2)
		if second.Cost != 5 || !c.Overtaken(&first) || c.Overtaken(&second) {
			t.Errorf("%+v asks for %d, want 5", second, second.Cost)
		}
		first.Max = 7
		c.Granted(10*ms, &first, answer(7)) // 4 go back: 3 in advance, and what does not suffice for the one that waits
		takes(t, &c, 10*ms, l, 1, Wait)
		c.Leave(1)
		serves(t, &c, 10*ms, l, 3, Wait)
		if c.Held(10*ms) != 0 {
			t.Errorf("%d units in hand of a call that was given up", c.Held(10*ms))
		}
		second.Max = 9
		c.Granted(11*ms, &second, answer(9))
		serves(t, &c, 11*ms, l, 3, Admit)
		if c.Held(11*ms) != 4 || c.queued != 0 {
			t.Errorf("%d units in hand, %d waited for", c.Held(11*ms), c.queued)
		}
		c.used = 1000 // so that the hand is not given back as more than will be used
		returns(t, &c, 11*ms, 6)
	}
}

// TestAnOverdueCallThatReturnsFirst serves who waits for the other one.
func TestAnOverdueCallThatReturnsFirst(t *testing.T) {
	var c Counter
	takes(t, &c, 0, &fixed, 1, Ask)
	asks(t, &c, 0, &fixed, 1)
	takes(t, &c, 1*ms, &fixed, 1, Wait)
	takes(t, &c, 1*ms, &fixed, 3, Wait)
	c.Leave(1)
	c.Overdue()
	second := asks(t, &c, 9*ms, &fixed, 1)
	takes(t, &c, 10*ms, &fixed, 1, Wait)
	c.Leave(1)
	c.Overdue()
	third := asks(t, &c, 19*ms, &fixed, 1)
	c.Granted(20*ms, &second, &core.Result{At: begins, Granted: 4, Remaining: 500, Reset: core.Second, Receipt: begins})
	serves(t, &c, 20*ms, &fixed, 3, Admit)
	takes(t, &c, 20*ms, &fixed, 1, Wait)
	c.Failed(21 * ms)
	if c.Overtaken(&third) {
		t.Error("the last call is not the one under way")
	}
	serves(t, &c, 21*ms, &fixed, 1, Ask)
}
