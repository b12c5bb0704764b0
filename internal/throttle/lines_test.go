// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/storetest"
)

// places names lines by single letters.
func places(keys string, most int) []Place {
	var all []Place
	for _, key := range keys {
		all = append(all, Place{Key: []byte(string(key)), Max: most})
	}
	return all
}

func join(t *testing.T, l *Lines, keys string) *Ticket {
	t.Helper()
	ticket := l.Join(places(keys, 100))
	if ticket == nil {
		t.Fatalf("no place in %q", keys)
	}
	return ticket
}

func (t *Ticket) hasTurn() bool {
	select {
	case <-t.turn:
		return true
	default:
		return false
	}
}

// turns says which of the tickets have their turn: "x.x".
func turns(tickets ...*Ticket) string {
	text := make([]byte, len(tickets))
	for i, t := range tickets {
		text[i] = '.'
		if t.hasTurn() {
			text[i] = 'x'
		}
	}
	return string(text)
}

func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	l := New(Options{})
	a, b, c := join(t, l, "k"), join(t, l, "k"), join(t, l, "k")
	other := join(t, l, "o")
	want(t, "at first", turns(a, b, c, other), "x..x")
	a.Leave()
	want(t, "a has left", turns(b, c), "x.")
	a.Leave()
	want(t, "a leaves again", turns(b, c), "x.")
	b.Leave()
	want(t, "b has left", turns(c), "x")
	if !l.Busy([]byte("k")) || l.Busy([]byte("x")) {
		t.Error("k has a line and x has none")
	}
	c.Leave()
	other.Leave()
	if l.Waiting() != 0 || len(l.lines) != 0 || l.Busy([]byte("k")) {
		t.Errorf("%d wait in %d lines after everybody left", l.Waiting(), len(l.lines))
	}
}

func TestWhoGivesUpFreesTheirPlace(t *testing.T) {
	l := New(Options{})
	a, b, c := join(t, l, "k"), join(t, l, "k"), join(t, l, "k")
	b.Leave()
	want(t, "the one in the middle left", turns(a, c), "x.")
	c.Leave()
	d := join(t, l, "k")
	want(t, "the last one left", turns(a, d), "x.")
	a.Leave()
	want(t, "the first one left", turns(d), "x")
}

func TestTheTurnComesInAllLines(t *testing.T) {
	l := New(Options{})
	a, b := join(t, l, "a"), join(t, l, "b")
	ab, ba := join(t, l, "ab"), join(t, l, "ba")
	want(t, "at first", turns(a, b, ab, ba), "xx..")
	b.Leave()
	want(t, "b's line is free", turns(ab, ba), "..")
	a.Leave()
	want(t, "both lines are free", turns(ab, ba), "x.")
	ab.Leave()
	want(t, "the older one left", turns(ba), "x")
}

func TestALineNamedTwice(t *testing.T) {
	l := New(Options{})
	a := join(t, l, "kk")
	want(t, "nobody is behind oneself", turns(a), "x")
	a.Leave()
	if len(l.lines) != 0 {
		t.Error("a line is left behind")
	}
}

func TestNoLineAtAll(t *testing.T) {
	l := New(Options{})
	a := join(t, l, "")
	want(t, "at once", turns(a), "x")
	a.Leave()
}

func TestFull(t *testing.T) {
	l := New(Options{WaitersMax: 4, LinesMax: 3})
	a := l.Join(places("k", 2))
	l.Join(places("k", 2))
	if l.Join(places("k", 2)) != nil {
		t.Error("a third one in a line of two")
	}
	if l.Join(places("ak", 2)) != nil || l.Busy([]byte("a")) {
		t.Error("who finds one of the lines full stands in none")
	}
	if l.Join(places("z", 0)) != nil {
		t.Error("a line that nobody may stand in")
	}
	a.Leave()
	if a = l.Join(places("k", 2)); a == nil {
		t.Error("a place that was freed")
	}
	if l.Join(places("abc", 2)) != nil {
		t.Error("more lines than there may be")
	}
	l.Join(places("ab", 2))
	l.Join(places("b", 2))
	if l.Join(places("b", 9)) != nil {
		t.Error("more waiters than there may be")
	}
	if got := l.Waiting(); got != 4 {
		t.Errorf("%d wait, want 4", got)
	}
}

// TestTheOldestAlwaysHasItsTurn: however tickets come and go, the oldest of those in line is served, everybody has the
// turn exactly if no older one stands in one of their lines, and nothing is left behind.
func TestTheOldestAlwaysHasItsTurn(t *testing.T) {
	random := rand.New(rand.NewPCG(storetest.Seed(t), 1))
	l := New(Options{})
	type waiter struct {
		keys   string
		ticket *Ticket
	}
	var inLine []waiter
	for step := range 5000 {
		if len(inLine) < 12 && random.IntN(2) == 0 {
			keys := []byte("abcdef")
			random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
			chosen := string(keys[:1+random.IntN(4)])
			inLine = append(inLine, waiter{chosen, join(t, l, chosen)})
		} else if len(inLine) > 0 {
			at := random.IntN(len(inLine))
			inLine[at].ticket.Leave()
			inLine = slices.Delete(inLine, at, at+1)
		}
		ahead := make(map[rune]bool)
		for i, w := range inLine {
			free := true
			for _, key := range w.keys {
				free = free && !ahead[key]
				ahead[key] = true
			}
			if w.ticket.hasTurn() != free {
				t.Fatalf("step %d: ticket %d of %d in %q: turn %v, want %v", step, i, len(inLine), w.keys, !free, free)
			}
		}
		if len(l.lines) != len(ahead) || l.Waiting() != len(inLine) {
			t.Fatalf("step %d: %d lines and %d waiters, want %d and %d", step, len(l.lines), l.Waiting(), len(ahead), len(inLine))
		}
	}
}

// TestManyAtOnce has goroutines wait in two lines in opposite orders: nobody is left standing, and of those that share a
// line never two have the turn.
func TestManyAtOnce(t *testing.T) {
	l := New(Options{})
	var served [2]int
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			for range 50 {
				ticket := l.Join(places([]string{"ab", "ba", "a", "b"}[i%4], 100))
				<-ticket.Turn()
				if i%4 != 3 {
					served[0]++ // under the race detector: nobody else has a's turn
				}
				if i%4 != 2 {
					served[1]++
				}
				ticket.Leave()
			}
		})
	}
	group.Wait()
	want(t, "served", fmt.Sprint(served), "[2400 2400]")
	if l.Waiting() != 0 || len(l.lines) != 0 {
		t.Errorf("%d wait in %d lines", l.Waiting(), len(l.lines))
	}
}

func TestAskingAllocatesNothing(t *testing.T) {
	l := New(Options{})
	key := []byte("rl1:shop:api:{192.0.2.7}:60s:sw")
	for _, what := range []string{"nobody waits", "somebody waits"} {
		if got := testing.AllocsPerRun(100, func() { l.Busy(key) }); got != 0 {
			t.Errorf("%s: %v allocations", what, got)
		}
		l.Join([]Place{{Key: key, Max: 1}})
	}
}

func BenchmarkBusy(b *testing.B) {
	key := []byte("rl1:shop:api:{192.0.2.7}:60s:sw")
	for _, waiting := range []int{0, 1000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			l := New(Options{})
			for range waiting {
				l.Join([]Place{{Key: key, Max: waiting}})
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l.Busy(key)
				}
			})
		})
	}
}
