// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core"
)

// BenchmarkTakeFromHand is a request that is decided from what is in hand.
func BenchmarkTakeFromHand(b *testing.B) {
	l := must(core.NewLimit(core.SlidingWindow, core.CountMax, core.Minute, 0))
	c := holding(&l, core.CountMax/2)
	b.ReportAllocs()
	now := core.Micros(2)
	for b.Loop() {
		now++
		if now > core.Second/5 {
			now = 2
			c = holding(&l, core.CountMax/2)
		}
		if v, _ := c.Take(now, &l, 1); v != Admit {
			b.Fatalf("verdict %d", v)
		}
	}
}

// BenchmarkDenied is a request that the store refused not long ago.
func BenchmarkDenied(b *testing.B) {
	l := must(core.NewLimit(core.FixedWindow, 10, core.Minute, 0))
	var c Counter
	a, _ := c.Ask(1, &l, 1)
	c.Granted(2, &a, &core.Result{Refused: true, Wait: core.Minute, Reset: core.Minute})
	b.ReportAllocs()
	var r core.Result
	for b.Loop() {
		if v, _ := c.Take(3, &l, 1); v != Deny {
			b.Fatalf("verdict %d", v)
		}
		c.Answer(3, 1, Deny, &r)
	}
}

// holding returns a counter that has got so many units at instant 1.
func holding(l *core.Limit, units int64) *Counter {
	c := new(Counter)
	a, _ := c.Ask(1, l, 1)
	a.Cost, a.Max, a.Age = 1, 1+units, c.age()
	c.Granted(1, &a, &core.Result{Granted: 1 + units, Remaining: l.Count() - units - 1, Reset: 30 * core.Second,
		Next: 30 * core.Second, Receipt: begins})
	return c
}
