// SPDX-License-Identifier: Apache-2.0

// Package benchpair compares ways of doing something on a shared machine. It runs the ways in short
// turns, so that other work on the machine affects all of them equally. It reports the median turn
// of each way, and the ratio to the first way. Each call costs an extra function call, about 2 ns.
// Use an ordinary benchmark for code that allocates, or that many goroutines run at once.
package benchpair

import (
	"slices"
	"testing"
	"time"
)

// A turn is long enough for the resolution of the clock, and so short that most turns are not
// interrupted.
const (
	turn   = 100 * time.Microsecond
	rounds = 301
)

// Way is one way of doing something.
type Way struct {
	Name string
	Call func()
}

// Measure reports each way as a sub-benchmark, with two figures: the median of the nanoseconds per
// call in its turns, and the ratio of this median to that of the first way.
func Measure(b *testing.B, ways []Way) {
	b.Helper()
	calls, spans := make([]int, len(ways)), make([][]float64, len(ways))
	for i, w := range ways {
		calls[i] = callsIn(w.Call)
	}
	for range rounds {
		for i, w := range ways {
			spans[i] = append(spans[i], perCall(w.Call, calls[i]))
		}
	}
	for i, w := range ways {
		b.Run(w.Name, func(b *testing.B) {
			b.ReportMetric(Median(spans[i]), "ns/op")
			b.ReportMetric(Median(spans[i])/Median(spans[0]), "ratio")
		})
	}
}

// callsIn returns the number of calls that fill a turn.
func callsIn(call func()) int {
	for calls := 1; ; calls *= 2 {
		if time.Duration(perCall(call, calls)*float64(calls)) >= turn {
			return calls
		}
	}
}

func perCall(call func(), calls int) float64 {
	start := time.Now()
	for range calls {
		call()
	}
	return float64(time.Since(start).Nanoseconds()) / float64(calls)
}

// Median returns the median of the figures, or 0 if there are none.
func Median(figures []float64) float64 {
	if len(figures) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(figures))[len(figures)/2]
}
