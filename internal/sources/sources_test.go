// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"hash/maphash"
	"testing"
)

// TestOneSourceHasHalfOfThePlaces: one source gets half of the places, another source still gets
// some, and a place that was left can be taken again.
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

// TestEachProcessHasOtherNeighbors: two sources with the same number in one process have different
// numbers in another process, and the numbers of sources that differ in few bits are spread.
func TestEachProcessHasOtherNeighbors(t *testing.T) {
	const queues, n = 256, 1 << 16
	first, second := maphash.MakeSeed(), maphash.MakeSeed()
	neighbors, still := 0, 0
	var counts [queues]int
	for i := range uint32(n) {
		const victim = 7
		source := i<<9 | victim // the same lowest bits as the victim
		counts[Number(source)%queues]++
		if i == 0 || number(first, source)%queues != number(first, victim)%queues {
			continue
		}
		neighbors++
		if number(second, source)%queues == number(second, victim)%queues {
			still++
		}
	}
	if neighbors < 100 || still > neighbors/10 {
		t.Errorf("%d sources share a queue with another in one process, and %d of these in both", neighbors, still)
	}
	for i, count := range counts {
		if count > 2*n/queues || count < n/queues/2 {
			t.Errorf("queue %d has %d of %d sources", i, count, n)
		}
	}
}
