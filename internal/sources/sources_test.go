// SPDX-License-Identifier: Apache-2.0

package sources

import "testing"

// TestOneSourceHasHalfOfThePlaces: one source gets half of the places, another one still gets some,
// and a place that was left can be taken again.
func TestOneSourceHasHalfOfThePlaces(t *testing.T) {
	c := New()
	greedy, other := c.Of(0), c.Of(1)
	for n := uint64(2); other == greedy; n++ {
		other = c.Of(n)
	}
	entered := 0
	for range 30 {
		if greedy.Enter(20) {
			entered++
		} else {
			greedy.Leave()
		}
	}
	if entered != 10 || !other.Enter(20) {
		t.Errorf("%d of 20 places are one source's, and another finds none", entered)
	}
	if greedy.Leave(); !greedy.Enter(20) {
		t.Error("a place that was left is lost")
	}
	if only := New().Of(7); !only.Enter(1) {
		t.Error("the only place is nobody's")
	}
}
