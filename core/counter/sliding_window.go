// SPDX-License-Identifier: Apache-2.0

package counter

// Fixed and sliding windows share their state: the start of an aligned window and the units charged
// in it. A sliding window adds the units of the previous window, weighted by the fraction of that
// window that is covered by a span of one window ending now.

// Limit.weightedPrevious returns ⌊previous × (window − elapsed) / window⌋.
func (l *Limit) weightedPrevious(s *Slot) int64 {
	return mulDiv(s.State.Aux, int64(l.window-(s.now-s.State.At)), int64(l.window))
}

// slidingPassesAt returns the earliest instant at which the sliding window has room for cost, or 0
// if it has room now. That instant can be in the current window, in which the weight of the
// previous window decreases, or in the next window, in which the weight of the current one
// decreases. Otherwise it is the start of the window after the next one.
func (l *Limit) slidingPassesAt(s *Slot, cost int64) Micros {
	if l.usedUnits(s)+cost <= l.count {
		return 0
	}
	if at, ok := l.fadeInstant(s.State.At, s.State.Aux, l.count-cost-s.State.Used); ok {
		return at
	}
	if at, ok := l.fadeInstant(s.State.At+l.window, s.State.Used, l.count-cost); ok {
		return at
	}
	return s.State.At + 2*l.window
}

// fadeInstant returns the first instant, in the window that begins at start, at which the weighted
// units of the previous window are at most room.
func (l *Limit) fadeInstant(start Micros, previous, room int64) (at Micros, ok bool) {
	if room < 0 {
		return 0, false
	}
	if previous <= room {
		return start, true
	}
	// ⌊previous × left / window⌋ ≤ room if and only if
	// left ≤ ⌊((room + 1) × window − 1) / previous⌋.
	left := Micros(mulSubDiv(room+1, int64(l.window), 1, previous))
	return start + l.window - left, left > 0
}
