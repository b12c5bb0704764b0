// SPDX-License-Identifier: Apache-2.0

package benchpair

import (
	"testing"
	"time"
)

// TestMeasure checks that each way is called in every round, and that the faster one is called more
// often.
func TestMeasure(t *testing.T) {
	var short, long int
	work := func(n int) {
		for start := time.Now(); time.Since(start) < time.Duration(n)*5*time.Microsecond; {
			continue
		}
	}
	ways := []Way{{"short", func() { short++; work(1) }}, {"long", func() { long++; work(10) }}}
	// other work on the machine may slow down the fast way while it is calibrated
	for try := 0; try < 5 && short <= long; try++ {
		short, long = 0, 0
		testing.Benchmark(func(b *testing.B) { Measure(b, ways) })
	}
	if short < rounds || long < rounds || short <= long {
		t.Errorf("%d and %d calls, want at least %d of each, and more of the shorter", short, long, rounds)
	}
}

func TestMedian(t *testing.T) {
	for want, figures := range map[float64][]float64{0: nil, 7: {7}, 2: {3, 1, 2}, 5: {9, 5, 5, 1}} {
		if got := Median(figures); got != want {
			t.Errorf("of %v: %v, want %v", figures, got, want)
		}
	}
}
