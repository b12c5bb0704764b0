// SPDX-License-Identifier: Apache-2.0

package region

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestGossipIsOverByWhatItHasNotHeard simulates random traffic in regions that report their counts
// at random times. Take the region that admits the last request of a window. At that moment, some
// units of other regions may not have been reported to it yet. The regions together exceed the
// limit in the window by at most the number of those units.
func TestGossipIsOverByWhatItHasNotHeard(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	exceeded := 0
	for range 300 {
		limit, err := counter.NewLimit(counter.FixedWindow, 1+rng.Int64N(200), counter.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		regions := 2 + rng.IntN(RegionsMax-1)
		all, admitted := make([]Gossip, regions), make([]int64, regions)
		heard := make([][RegionsMax]int64, regions)
		for i := range all {
			if all[i], err = NewGossip(limit, i); err != nil {
				t.Fatal(err)
			}
		}
		now := counter.Micros(begins)
		for range 1000 {
			now += counter.Micros(rng.Int64N(int64(50 * counter.Millisecond)))
			i, j := rng.IntN(regions), rng.IntN(regions)
			if rng.IntN(10) == 0 && i != j {
				all[i].Hear(j, all[j].Report())
				heard[i][j] = admitted[j]
				continue
			}
			if !all[i].Take(now, 1) {
				continue
			}
			admitted[i]++
			total, unheard := int64(0), int64(0)
			for k := range all {
				total += admitted[k]
				if k != i {
					unheard += admitted[k] - heard[i][k]
				}
			}
			if total > limit.Count() {
				exceeded++
			}
			if total > limit.Count()+unheard {
				t.Fatalf("%d admitted of %v, of which region %d had not heard %d", total, limit, i, unheard)
			}
		}
	}
	if exceeded == 0 {
		t.Error("no limit was exceeded: the traffic is too weak to test the bound")
	}
}

// TestReportsMergeInAnyOrder tests that a report that arrives twice, or after a newer report,
// changes nothing.
func TestReportsMergeInAnyOrder(t *testing.T) {
	limit, err := counter.NewLimit(counter.SlidingWindow, 10, counter.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	reports := []Count{{Start: begins, Current: 3}, {Start: begins, Current: 5},
		{Start: begins + counter.Minute, Current: 2, Previous: 5}}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		g, err := NewGossip(limit, 0)
		if err != nil {
			t.Fatal(err)
		}
		order := rng.Perm(len(reports))
		for _, i := range append(order, order...) {
			g.Hear(1, reports[i])
		}
		if got := g.counts[1]; got != reports[2] {
			t.Fatalf("after %v: %+v, want %+v", order, got, reports[2])
		}
	}
}
