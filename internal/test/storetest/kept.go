// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	corecounter "github.com/penstock/penstock/core/counter"
)

// keptSlot returns a store's state for a check, advanced to now. If that state equals that of a new
// counter, it returns the zero Slot. Two stores have the same state if keptSlot returns equal slots
// for them. An empty counter that is ahead of the clock differs from a new one, because it
// continues at its own instant.
func keptSlot(c corecounter.Check, s corecounter.Slot, now corecounter.Micros) corecounter.Slot {
	if b := c.Bounds; b != nil && (now < b[0] || now >= b[3]) {
		if s.State.At < b[3] && now >= max(b[3], s.State.Leased) {
			return corecounter.Slot{} // every period to which the state can belong is over
		}
		return corecounter.Slot{State: s.State}
	}
	s = corecounter.Slot{State: s.State, Marks: slices.Clone(s.Marks), Violations: slices.Clone(s.Violations)}
	isLog := c.Limit != nil && c.Limit.Algorithm() == corecounter.SlidingLog
	if isLog {
		s.State = corecounter.State{}
		for _, m := range s.Marks {
			s.State.Used, s.State.At = s.State.Used+m.Units, m.At
		}
	}
	slots, r := []corecounter.Slot{s}, make([]corecounter.Result, 1)
	corecounter.Decide(now, []corecounter.Check{{Limit: c.Limit, Bounds: c.Bounds, Penalty: c.Penalty, Op: corecounter.OpLook}}, slots, r)
	s = slots[0]
	switch {
	case c.Penalty != nil && s.State.At <= now:
		return corecounter.Slot{Violations: sortViolations(s.Violations)}
	case c.Penalty != nil:
		return corecounter.Slot{State: corecounter.State{At: s.State.At}, Violations: sortViolations(s.Violations)}
	case s.State.Used == 0 && s.State.At <= now && s.State.Leased == 0 && (c.Limit.Algorithm() != corecounter.SlidingWindow || s.State.Aux == 0):
		return corecounter.Slot{}
	case isLog:
		return corecounter.Slot{Marks: s.Marks}
	default:
		return corecounter.Slot{State: s.State}
	}
}

// sortViolations sorts violations, which stores may return in any order.
func sortViolations(violations []corecounter.Violation) []corecounter.Violation {
	slices.SortFunc(violations, func(a, b corecounter.Violation) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Until, b.Until), cmp.Compare(a.ID, b.ID))
	})
	return violations
}

// Subject.holds returns the counter or penalty that the store has stored for a check, without
// advancing it to the store's clock.
func (s *Subject) holds(t testing.TB, c *corecounter.Check) (slot corecounter.Slot) {
	t.Helper()
	switch {
	case c.Penalty == nil:
		slot.State, slot.Marks = s.Counter(t, c.Key, c.Limit)
	case s.Penalty == nil:
		t.Fatal("the subject cannot say what it keeps of a penalty: set Subject.Penalty")
	default:
		slot.State.At, slot.Violations = s.Penalty(t, c.Key)
		sortViolations(slot.Violations)
	}
	return slot
}

func isZero(s corecounter.Slot) bool {
	return s.State == (corecounter.State{}) && len(s.Marks)+len(s.Violations) == 0
}

func sameSlot(a, b *corecounter.Slot) bool {
	return a.State == b.State && slices.Equal(a.Marks, b.Marks) && slices.Equal(a.Violations, b.Violations)
}

// slotsByContent are the options with which package cmp compares only those fields of a Slot that
// stores keep.
var slotsByContent = gocmp.Options{cmpopts.IgnoreUnexported(corecounter.Slot{}), cmpopts.IgnoreFields(corecounter.Slot{}, "Write"),
	cmpopts.EquateEmpty()}
