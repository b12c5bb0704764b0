// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/test/seed"
)

// request is an item that knows its source.
type request struct{ source uint32 }

func ofSource(source uint32) *request { return &request{source} }

func push(l *Lines[*request], r *request) { l.Push(r.source, r) }

func remove(l *Lines[*request], r *request) bool {
	return l.Remove(r.source, func(other *request) bool { return other == r })
}

// TestSourcesTakeTurns: of three sources, the one with the most items delays each item of another
// source by at most one item.
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

// TestLinesAgreeWithSlowLines compares Lines with a model made of slices, over random operations.
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

// TestTurnsKeepTheOrder: the requests of one source leave in the order of arrival, and the sources
// take turns, even after requests were removed or put back.
func TestTurnsKeepTheOrder(t *testing.T) {
	var queue Lines[*request]
	var want []*request // the requests of source 3 and of source 1, alternately
	for range 3 {
		one, two, three := ofSource(1), ofSource(2), ofSource(3)
		push(&queue, three)
		push(&queue, two)
		push(&queue, one)
		want = append(want, three, one)
		defer func() {
			if remove(&queue, two) {
				t.Error("a request is removed twice")
			}
		}()
		if !remove(&queue, two) {
			t.Error("a request that waits is not removed")
		}
	}
	var newer Lines[*request]
	one, four := ofSource(1), ofSource(4)
	push(&newer, one)
	push(&newer, four)
	want = append(want[:2:2], append([]*request{four}, append(want[2:], one)...)...)
	earlier := queue
	newer.Prepend(earlier)
	queue = newer
	for i, q := range want {
		if got, _ := queue.Pop(); got != q {
			t.Fatalf("request %d is not the one whose turn it is", i)
		}
	}
	_, popped := queue.Pop()
	_, peeked := queue.Peek()
	if popped || peeked || queue.Len() != 0 || len(queue.lines) != 0 {
		t.Errorf("an empty queue has %d requests and %d lines", queue.Len(), len(queue.lines))
	}
}

// TestTurnsLoseNothing: after any pushes, removals, moves and pops, a queue has exactly the
// requests that are expected.
func TestTurnsLoseNothing(t *testing.T) {
	random := seed.Random(t)
	var queue Lines[*request]
	var have []*request
	for range 100_000 {
		switch random.IntN(8) {
		case 0, 1, 2:
			q := ofSource(random.Uint32N(3 * linesKept))
			push(&queue, q)
			have = append(have, q)
		case 3, 4:
			if len(have) > 0 {
				at := random.IntN(len(have))
				if !remove(&queue, have[at]) {
					t.Fatal("a request that waits is not removed")
				}
				have = slices.Delete(have, at, at+1)
			}
		case 5:
			earlier := queue
			queue = Lines[*request]{}
			q := ofSource(random.Uint32N(3 * linesKept))
			push(&queue, q)
			have = append(have, q)
			queue.Prepend(earlier)
		default:
			q, _ := queue.Peek()
			if popped, _ := queue.Pop(); popped != q || q == nil != (len(have) == 0) {
				t.Fatal("the request whose turn it is is not removed")
			}
			have = slices.DeleteFunc(have, func(h *request) bool { return h == q })
		}
		if queue.Len() != len(have) {
			t.Fatalf("%d requests wait, want %d", queue.Len(), len(have))
		}
	}
	for len(have) > 0 {
		q, _ := queue.Pop()
		at := slices.Index(have, q)
		if at < 0 {
			t.Fatal("a request leaves twice")
		}
		have = slices.Delete(have, at, at+1)
	}
	if queue.first != nil || queue.last != nil || len(queue.lines) != 0 {
		t.Error("an empty queue has lines")
	}
}
