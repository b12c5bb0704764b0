// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// BenchmarkTakeFromHand measures a request that is decided from held units.
func BenchmarkTakeFromHand(b *testing.B) {
	l := must(counter.NewLimit(counter.SlidingWindow, counter.CountMax, counter.Minute, 0))
	c := newHolding(&l, counter.CountMax/2)
	b.ReportAllocs()
	now := counter.Micros(2)
	for b.Loop() {
		now++
		if now > counter.Second/5 {
			now = 2
			c = newHolding(&l, counter.CountMax/2)
		}
		if v, _ := c.Take(now, &l, 1); v != Admit {
			b.Fatalf("verdict %d", v)
		}
	}
}

// BenchmarkDenied measures a request that is denied because the store has recently denied one.
func BenchmarkDenied(b *testing.B) {
	l := must(counter.NewLimit(counter.FixedWindow, 10, counter.Minute, 0))
	var c Counter
	a, _ := c.Ask(1, &l, 1)
	c.Granted(2, &a, &counter.Result{Denied: true, Wait: counter.Minute, Reset: counter.Minute})
	b.ReportAllocs()
	var r counter.Result
	for b.Loop() {
		if v, _ := c.Take(3, &l, 1); v != Deny {
			b.Fatalf("verdict %d", v)
		}
		c.Answer(3, 1, Deny, &r)
	}
}

// newHolding returns a counter that holds the given number of units, which were granted at instant
// 1.
func newHolding(l *counter.Limit, units int64) *Counter {
	c := new(Counter)
	a, _ := c.Ask(1, l, 1)
	a.Cost, a.Max, a.Age = 1, 1+units, c.age()
	c.Granted(1, &a, &counter.Result{Granted: 1 + units, Remaining: l.Count() - units - 1, Reset: 30 * counter.Second,
		Next: 30 * counter.Second, Receipt: begins})
	return c
}
