// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock/core"
)

// kept is what a store holds for what a check asks about, as it would stand at now; nothing if that is as good as fresh.
// Two stores hold the same if this is equal. An empty counter that is ahead of the clock is not fresh: it goes on at its
// own instant.
func kept(c core.Check, s core.Slot, now core.Micros) core.Slot {
	if b := c.Bounds; b != nil && (now < b[0] || now >= b[3]) {
		if s.State.At < b[3] && now >= max(b[3], s.State.Leased) {
			return core.Slot{} // every period that it can be of is over
		}
		return core.Slot{State: s.State}
	}
	s = core.Slot{State: s.State, Marks: slices.Clone(s.Marks), Violations: slices.Clone(s.Violations)}
	isLog := c.Limit != nil && c.Limit.Algorithm() == core.SlidingLog
	if isLog {
		s.State = core.State{}
		for _, m := range s.Marks {
			s.State.Used, s.State.At = s.State.Used+m.Units, m.At
		}
	}
	slots, r := []core.Slot{s}, make([]core.Result, 1)
	core.Decide(now, []core.Check{{Limit: c.Limit, Bounds: c.Bounds, Penalty: c.Penalty, Op: core.OpLook}}, slots, r)
	s = slots[0]
	switch {
	case c.Penalty != nil && s.State.At <= now:
		return core.Slot{Violations: inOrder(s.Violations)}
	case c.Penalty != nil:
		return core.Slot{State: core.State{At: s.State.At}, Violations: inOrder(s.Violations)}
	case s.State.Used == 0 && s.State.At <= now && s.State.Leased == 0 && (c.Limit.Algorithm() != core.SlidingWindow || s.State.Aux == 0):
		return core.Slot{}
	case isLog:
		return core.Slot{Marks: s.Marks}
	default:
		return core.Slot{State: s.State}
	}
}

// inOrder sorts violations: stores may return them in any order.
func inOrder(violations []core.Violation) []core.Violation {
	slices.SortFunc(violations, func(a, b core.Violation) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Until, b.Until), cmp.Compare(a.ID, b.ID))
	})
	return violations
}

// holds returns what a store keeps for what a check asks about, as it stands.
func (s *Subject) holds(t testing.TB, c *core.Check) (slot core.Slot) {
	t.Helper()
	switch {
	case c.Penalty == nil:
		slot.State, slot.Marks = s.Counter(t, c.Key, c.Limit)
	case s.Penalty == nil:
		t.Fatal("the subject cannot say what it keeps of a penalty: set Subject.Penalty")
	default:
		slot.State.At, slot.Violations = s.Penalty(t, c.Key)
		inOrder(slot.Violations)
	}
	return slot
}

func nothing(s core.Slot) bool {
	return s.State == (core.State{}) && len(s.Marks)+len(s.Violations) == 0
}

func sameSlot(a, b *core.Slot) bool {
	return a.State == b.State && slices.Equal(a.Marks, b.Marks) && slices.Equal(a.Violations, b.Violations)
}

// slotsByContent compares what is kept: the fields that stores see.
var slotsByContent = gocmp.Options{cmpopts.IgnoreUnexported(core.Slot{}), cmpopts.IgnoreFields(core.Slot{}, "Write"),
	cmpopts.EquateEmpty()}
