// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/test/seed"
)

// TestSourcesTakeTurns: of three sources, the one with the most items delays the others by one item
// for each of theirs.
func TestSourcesTakeTurns(t *testing.T) {
	var l Lines[string]
	for _, item := range []string{"a1", "a2", "a3", "a4", "b1", "b2", "c1"} {
		l.Push(uint32(item[0]), item)
	}
	if l.Len() != 7 || l.Of('a') != 4 || l.Of('d') != 0 {
		t.Errorf("%d items, %d of a, %d of d", l.Len(), l.Of('a'), l.Of('d'))
	}
	var got []string
	for item, ok := l.Pop(); ok; item, ok = l.Pop() {
		got = append(got, item)
	}
	if want := []string{"a1", "b1", "c1", "a2", "b2", "a3", "a4"}; !slices.Equal(got, want) {
		t.Errorf("the order is %q, want %q", got, want)
	}
}

// TestLinesAgreeWithSlowLines compares random operations with lines that are slices.
func TestLinesAgreeWithSlowLines(t *testing.T) {
	rng := seed.Random(t)
	var l Lines[int]
	type slowLine struct {
		source uint32
		items  []int
	}
	var slow []slowLine
	total := 0
	for step := range 200_000 {
		if step/5000%2 == 0 && rng.IntN(3) > 0 || rng.IntN(3) == 0 {
			source := uint32(rng.IntN(200))
			l.Push(source, step)
			total++
			if i := slices.IndexFunc(slow, func(s slowLine) bool { return s.source == source }); i >= 0 {
				slow[i].items = append(slow[i].items, step)
			} else {
				slow = append(slow, slowLine{source, []int{step}})
			}
			continue
		}
		got, ok := l.Pop()
		if ok != (len(slow) > 0) {
			t.Fatalf("step %d: Pop returns %v, with %d lines", step, ok, len(slow))
		}
		if !ok {
			continue
		}
		turn := slow[0]
		slow = slow[1:]
		if total--; got != turn.items[0] || l.Len() != total || l.Of(turn.source) != len(turn.items)-1 {
			t.Fatalf("step %d: got %d, want %d; %d items, want %d", step, got, turn.items[0], l.Len(), total)
		}
		if len(turn.items) > 1 {
			slow = append(slow, slowLine{turn.source, turn.items[1:]})
		}
	}
}

// TestShortLinesAllocateNothing: adding an item to empty lines and removing it allocates nothing.
func TestShortLinesAllocateNothing(t *testing.T) {
	var l Lines[int]
	next := uint32(0)
	if n := testing.AllocsPerRun(1000, func() {
		next++
		l.Push(next, 1)
		l.Pop()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
