// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"slices"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock/core"
)

// kept is what a store holds for a counter, as it would stand at now under l; nothing if that is as good as a fresh one.
// Two stores hold the same if this is equal. An empty counter that is ahead of the clock is not fresh: it goes on at its
// own instant.
func kept(state core.State, marks []core.Mark, l *core.Limit, now core.Micros) core.Slot {
	c := [1]core.Check{{Limit: l, Op: core.OpLook}}
	s := [1]core.Slot{{State: state, Marks: slices.Clone(marks)}}
	if l.Algorithm() == core.SlidingLog {
		s[0].State = core.State{}
		for _, m := range marks {
			s[0].State.Used, s[0].State.At = s[0].State.Used+m.Units, m.At
		}
	}
	var r [1]core.Result
	core.Decide(now, c[:], s[:], r[:])
	switch {
	case s[0].State.Used == 0 && s[0].State.At <= now && (l.Algorithm() != core.SlidingWindow || s[0].State.Aux == 0):
		return core.Slot{}
	case l.Algorithm() == core.SlidingLog:
		return core.Slot{Marks: s[0].Marks}
	default:
		return core.Slot{State: s[0].State}
	}
}

func nothing(s core.Slot) bool { return s.State == (core.State{}) && len(s.Marks) == 0 }

func sameSlot(a, b *core.Slot) bool { return a.State == b.State && slices.Equal(a.Marks, b.Marks) }

// slotsByContent compares what is kept: the fields that stores see.
var slotsByContent = cmp.Options{cmpopts.IgnoreUnexported(core.Slot{}), cmpopts.EquateEmpty()}
