// SPDX-License-Identifier: Apache-2.0

// Package inturns measures ways of doing something beside each other: in short turns, so that whatever else the machine
// does hits all of them alike, and reports the median turn of each and its ratio to the first way. It is for benchmarks
// that compare, on machines that others use too. It costs each way a call of a function, some 2 ns. What allocates, or is
// done by many goroutines at once, is better measured by a benchmark of its own.
package inturns

import (
	"slices"
	"testing"
	"time"
)

// A turn is long enough for the clock, and so short that most turns are not interrupted.
const (
	turn   = 100 * time.Microsecond
	rounds = 301
)

// Way is one way of doing something.
type Way struct {
	Name string
	Call func()
}

// Measure reports each way as a sub-benchmark: the nanoseconds a call takes, as the median of its turns, and how many
// times that of the first way it is.
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

// callsIn returns how many calls fill a turn.
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

// Median returns the middle one of the figures; 0 if there are none.
func Median(figures []float64) float64 {
	if len(figures) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(figures))[len(figures)/2]
}
