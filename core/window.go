// SPDX-License-Identifier: Apache-2.0

package core

// Fixed and sliding windows share their state: the start of an aligned window and the units charged in it. The sliding
// one also carries the window before, weighted by the part of it that the last window's span still covers.

func (l *Limit) rollWindow(s *Slot) (store bool) {
	current := s.now - s.now%l.window
	switch {
	case s.State.At == 0:
		s.State = State{At: current}
	case s.State.At > s.now+l.window: // the clock went back further than a window
		s.State.At = current
		return true
	case s.State.At > s.now:
		s.now = s.State.At
	case s.State.At == current-l.window && l.algorithm == SlidingWindow:
		s.State = State{At: current, Aux: s.State.Used}
	case s.State.At != current:
		s.State = State{At: current}
	}
	return false
}

// weighted returns ⌊previous × (window − elapsed) / window⌋.
func (l *Limit) weighted(s *Slot) int64 {
	return mulDiv(s.State.Aux, int64(l.window-(s.now-s.State.At)), int64(l.window))
}

// slidingHas returns when cost passes the sliding window: in this window as the one before fades, in the next as this
// one fades, or else at the start of the one after.
func (l *Limit) slidingHas(s *Slot, cost int64) Micros {
	if l.used(s)+cost <= l.count {
		return 0
	}
	if at, ok := l.fades(s.State.At, s.State.Aux, l.count-cost-s.State.Used); ok {
		return at
	}
	if at, ok := l.fades(s.State.At+l.window, s.State.Used, l.count-cost); ok {
		return at
	}
	return s.State.At + 2*l.window
}

// fades returns the first instant of the window from start at which previous weighs at most room.
func (l *Limit) fades(start Micros, previous, room int64) (at Micros, ok bool) {
	if room < 0 {
		return 0, false
	}
	if previous <= room {
		return start, true
	}
	// ⌊previous × left / window⌋ ≤ room for left up to ⌊((room + 1) × window − 1) / previous⌋.
	left := Micros(mulSubDiv(room+1, int64(l.window), 1, previous))
	return start + l.window - left, left > 0
}

// uncount gives units back to the window they were charged in.
func (l *Limit) uncount(s *Slot, receipt Micros, n int64) int64 {
	count := &s.State.Used
	switch {
	case receipt == s.State.At:
	case receipt == s.State.At-l.window && l.algorithm == SlidingWindow:
		count = &s.State.Aux
	default:
		return 0
	}
	n = min(n, *count)
	*count -= n
	return n
}
