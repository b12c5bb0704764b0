// SPDX-License-Identifier: Apache-2.0

package counter

func (l *Limit) rollWindow(s *Slot) (store bool) {
	current := s.now - s.now%l.window
	switch {
	case s.State.At == 0:
		s.State = State{At: current}
	case s.State.At > s.now+l.window: // the clock went back by more than a window
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

// refundFixed refunds units to the window in which they were charged.
func (l *Limit) refundFixed(s *Slot, receipt Micros, n int64) int64 {
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
