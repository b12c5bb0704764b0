// SPDX-License-Identifier: Apache-2.0

package region

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/regiontest"
	"github.com/penstock/penstock/internal/test/seed"
)

// over returns the greatest number of units by which the admitted requests exceed the limit. It
// counts them as one shared counter would, at the times that the regions' clocks showed.
func over(limit counter.Limit, uses []use) int64 {
	byClock := func(a, b use) int { return cmp.Compare(a.at, b.at) }
	if !slices.IsSortedFunc(uses, byClock) {
		slices.SortStableFunc(uses, byClock)
	}
	switch limit.Algorithm() {
	case counter.TokenBucket:
		return overBucket(limit, uses)
	case counter.SlidingLog:
		return overLog(limit, uses)
	}
	return overWindow(limit, uses)
}

func overWindow(limit counter.Limit, uses []use) int64 {
	window := limit.Window()
	var start counter.Micros
	var current, previous, most int64
	for _, u := range uses {
		if begin := u.at - u.at%window; begin != start {
			previous = 0
			if begin == start+window && limit.Algorithm() == counter.SlidingWindow {
				previous = current
			}
			start, current = begin, 0
		}
		current += u.units
		weighted := previous * int64(start+window-u.at) / int64(window) // rounded down
		most = max(most, current+weighted-limit.Count())
	}
	return most
}

func overLog(limit counter.Limit, uses []use) (most int64) {
	first, sum := 0, int64(0)
	for _, u := range uses {
		sum += u.units
		for uses[first].at <= u.at-limit.Window() {
			sum -= uses[first].units
			first++
		}
		most = max(most, sum-limit.Count())
	}
	return most
}

// overBucket is like over, but for a token bucket. It computes how much the bucket lacks in
// fractions of a unit. A unit has as many fractions as the window has microseconds.
func overBucket(limit counter.Limit, uses []use) (most int64) {
	unit := int64(limit.Window())
	var missing int64
	var at counter.Micros
	for _, u := range uses {
		elapsed := min(u.at-at, 2*limit.Window()*counter.Micros(limit.Capacity()))
		missing = max(0, missing-int64(elapsed)*limit.Count())
		at = u.at
		missing += u.units * unit
		most = max(most, (missing+unit-1)/unit-limit.Capacity())
	}
	return most
}

// randomScene returns a short scene with random traffic and faults.
func randomScene(rng *rand.Rand) scene {
	algorithm := counter.Algorithm(1 + rng.IntN(4))
	count := []int64{1, 3, 10, 100, 2000}[rng.IntN(5)]
	window := []counter.Micros{counter.Second, 5 * counter.Second, 60 * counter.Second}[rng.IntN(3)]
	burst := int64(0)
	if algorithm == counter.TokenBucket {
		burst = 1 + rng.Int64N(2*count)
	}
	limit, err := counter.NewLimit(algorithm, count, window, burst)
	if err != nil {
		panic(err)
	}
	s := scene{limit: limit, regions: 2 + rng.IntN(RegionsMax-1),
		roundTrip: []counter.Micros{30_000, 80_000, 200_000}[rng.IntN(3)],
		traffic: regiontest.Traffic{
			Shape:  regiontest.Shape(rng.IntN(int(regiontest.Shapes))),
			Demand: []float64{0.5, 0.95, 2, 5}[rng.IntN(4)],
			Most:   1 + rng.Int64N(3),
		},
		lasts: 3 * window}
	if rng.IntN(2) == 0 {
		s.lose, s.double, s.slow = 0.3*rng.Float64(), 0.3*rng.Float64(), 0.3*rng.Float64()
	}
	if rng.IntN(2) == 0 {
		s.cut = 3 * s.roundTrip
	}
	if rng.IntN(2) == 0 {
		s.kill = 2 * s.roundTrip
	}
	s.loseOne = rng.IntN(4) == 0
	if s.traffic.Shape == regiontest.Pausing {
		s.sweep, s.lasts = window/4, 9*window
	}
	s.clockWide = []counter.Micros{0, 20_000, window, counter.Hour}[rng.IntN(4)]
	return s
}

// TestNeverOver simulates random scenes with random faults. In none of them is the limit exceeded,
// and the units of all regions always add up to the limit.
func TestNeverOver(t *testing.T) {
	first, rounds := seed.First(t), seed.Rounds(t, 500)
	var requests, forgotten int64
	for n := first; n < first+rounds; n++ {
		s := randomScene(seed.Source(n))
		w := newWorld(s, n)
		f := w.simulate(n)
		requests, forgotten = requests+f.requests, forgotten+f.forgotten
		if units := over(s.limit, w.uses()); units > 0 {
			t.Fatalf("PENSTOCK_SEED=%d: %d units over %v in %+v", n, units, s.limit, s)
		}
		if units := w.units(); units != s.limit.Capacity() {
			t.Fatalf("PENSTOCK_SEED=%d: the regions have %d units of %v in %+v", n, units, s.limit, s)
		}
		if played := n - first + 1; played == rounds || played%10_000 == 0 {
			t.Logf("%d of %d scenes from PENSTOCK_SEED=%d: %d requests, none over, %d shares forgotten", played, rounds, first, requests, forgotten)
		}
	}
	if forgotten == 0 {
		t.Error("no share was forgotten")
	}
}

// TestMistakesAreFound simulates the same scenes as TestNeverOver, but with one mistake at a time.
// The test fails unless each mistake leads to an exceeded limit in some scene.
func TestMistakesAreFound(t *testing.T) {
	for m := none + 1; m < mistakes; m++ {
		t.Run(mistakeNames[m], func(t *testing.T) {
			for seed := range uint64(5000) {
				s := randomScene(rand.New(rand.NewPCG(seed, 0)))
				s.mistake = m
				w := newWorld(s, seed)
				w.simulate(seed)
				if n := over(s.limit, w.uses()); n > 0 {
					t.Logf("found by seed %d: %d units over %v", seed, n, s.limit)
					return
				}
			}
			t.Error("not found in 5000 scenes")
		})
	}
}

// TestEveryPartIsValid tests that the parts of limits of every kind and size are valid limits.
func TestEveryPartIsValid(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		algorithm := counter.Algorithm(1 + rng.IntN(4))
		count := 1 + rng.Int64N(1<<rng.IntN(41))
		window := counter.WindowMin + counter.Micros(rng.Int64N(int64(counter.WindowMax)>>rng.IntN(20)))
		burst := int64(0)
		if algorithm == counter.TokenBucket {
			burst = 1 + rng.Int64N(1<<rng.IntN(41))
		}
		whole, err := counter.NewLimit(algorithm, count, window, burst)
		if err != nil || tooSlow(&whole) {
			continue
		}
		for _, units := range []int64{1, whole.Capacity(), 1 + rng.Int64N(whole.Capacity())} {
			if l := part(&whole, units); l.Capacity() != units {
				t.Errorf("%d units of %v: %v", units, whole, l)
			}
		}
	}
}
