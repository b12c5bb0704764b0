// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"cmp"
	"slices"
)

// A sliding log records each instant at which units were charged. State.Used is the running sum, so
// a decision reads only the marks that have expired, the oldest mark that has not, and, for a
// denial, the marks whose expiry the request must wait for.

func (l *Limit) rollLog(s *Slot) (store bool) {
	if len(s.Marks) == 0 {
		s.State = State{}
		return false
	}
	newest := s.Marks[len(s.Marks)-1].At
	switch {
	case newest > s.now+l.window: // the clock went back by more than a window
		l.gather(s)
		store = true
	case newest > s.now:
		s.now = newest
	}
	gone := 0
	for gone < len(s.Marks) && s.Marks[gone].At <= s.now-l.window {
		s.State.Used -= s.Marks[gone].Units
		gone++
	}
	if gone > 0 {
		s.Marks = s.Marks[:copy(s.Marks, s.Marks[gone:])]
		store = true
	}
	return store
}

// Limit.gather moves every future mark to the slot's instant.
func (l *Limit) gather(s *Slot) {
	first := slices.IndexFunc(s.Marks, func(m Mark) bool { return m.At >= s.now })
	units := int64(0)
	for _, m := range s.Marks[first:] {
		units += m.Units
	}
	s.Marks = append(s.Marks[:first], Mark{At: s.now, Units: units})
	s.State.At = s.now
}

// logPassesAt returns the instant at which enough of the oldest marks have expired for cost to
// pass.
func (l *Limit) logPassesAt(s *Slot, cost int64) Micros {
	need := s.State.Used + cost - l.count
	for i := range s.Marks {
		if need <= 0 {
			break
		}
		if need -= s.Marks[i].Units; need <= 0 {
			return s.Marks[i].At + l.window
		}
	}
	return 0
}

func (l *Limit) mark(s *Slot, n int64) Micros {
	if last := len(s.Marks) - 1; last >= 0 && s.Marks[last].At == s.now {
		s.Marks[last].Units += n
	} else {
		s.Marks = append(s.Marks, Mark{At: s.now, Units: n})
	}
	s.State.At = s.now
	s.State.Used += n
	return s.now
}

func (l *Limit) unmark(s *Slot, receipt Micros, n int64) int64 {
	i, found := slices.BinarySearchFunc(s.Marks, receipt, func(m Mark, at Micros) int { return cmp.Compare(m.At, at) })
	if !found {
		return 0
	}
	n = min(n, s.Marks[i].Units)
	s.Marks[i].Units -= n
	s.State.Used -= n
	if s.Marks[i].Units == 0 {
		s.Marks = slices.Delete(s.Marks, i, i+1)
	}
	return n
}
