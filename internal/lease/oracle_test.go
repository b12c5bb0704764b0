// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"slices"

	"github.com/penstock/penstock/core/counter"
)

// world.excess returns the number of units, rounded up, by which the uses exceed what the
// limit's algorithm promises. For a bucket, the promise concerns every span of time. The check is
// written from the promises, not from the code.
func (w *world) excess() int64 {
	slices.SortStableFunc(w.uses, func(a, b use) int { return cmp.Compare(a.at, b.at) })
	if w.limit.Algorithm() == counter.TokenBucket {
		return bucketExcess(w.uses, w.limit.Capacity(), w.limit.Count(), int64(w.limit.Window()))
	}
	window := int64(w.limit.Window())
	if w.period > 0 {
		window = int64(w.period)
	}
	return windowExcess(w.uses, w.limit.Count(), window, w.limit.Algorithm() == counter.SlidingWindow)
}

// bucketExcess pours the uses into a bucket that leaks as many units in each window as count says.
// The bucket never holds more than its capacity if and only if no span of time has more uses than
// the capacity plus the units that leak in the span. To keep the level an integer, a unit raises it
// by the number of microseconds in a window.
func bucketExcess(uses []use, capacity, count, window int64) (excess int64) {
	level, last := int64(0), counter.Micros(0)
	for _, u := range uses {
		if passed := int64(u.at - last); passed >= level/count+1 {
			level = 0
		} else {
			level -= passed * count
		}
		level = max(0, level) + u.units*window
		last = u.at
		excess = max(excess, level-capacity*window)
	}
	return (excess + window - 1) / window
}

// windowExcess counts the uses in aligned windows. For a sliding window it adds the uses of the
// previous window, weighted by the part of that window that lies within one window's length before
// the use.
func windowExcess(uses []use, count, window int64, sliding bool) (excess int64) {
	var number, current, before int64
	for _, u := range uses {
		if n := int64(u.at) / window; n != number {
			before = 0
			if n == number+1 {
				before = current
			}
			number, current = n, 0
		}
		current += u.units
		used := current
		if sliding {
			used += before * (window - int64(u.at)%window) / window
		}
		excess = max(excess, used-count)
	}
	return excess
}
