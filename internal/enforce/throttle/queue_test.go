// SPDX-License-Identifier: Apache-2.0

package throttle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/seed"
)

// places returns one place in a queue for each letter of keys, which is the name of the queue.
func places(keys string) []Place {
	var all []Place
	for _, key := range keys {
		all = append(all, place(string(key), 100))
	}
	return all
}

func place(key string, most int) Place { return Place{Key: []byte(key), Max: most, Cost: 1} }

func join(t *testing.T, l *Queues, key string) *Ticket {
	t.Helper()
	ticket := l.Join(place(key, 100))
	if ticket == nil {
		t.Fatalf("no place in %q", key)
	}
	return ticket
}

// listSignaled returns, as a text such as "x.x", which of the tickets were signaled since its last
// call.
func listSignaled(tickets ...*Ticket) string {
	text := make([]byte, len(tickets))
	for i, t := range tickets {
		select {
		case <-t.Turn():
			text[i] = 'x'
		default:
			text[i] = '.'
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

// TestOneSourceLeavesRoomForOthers: a client with many counters does not fill the queues.
func TestOneSourceLeavesRoomForOthers(t *testing.T) {
	const most = 64
	l := New(Options{WaitersMax: most})
	waiting := func(source uint32) (tickets []*Ticket) {
		for i := range most {
			p := Place{Key: fmt.Appendf(nil, "%d:%d", source, i), Max: 1, Source: source}
			if ticket := l.Join(p); ticket != nil {
				tickets = append(tickets, ticket)
			}
		}
		return tickets
	}
	one, other := uint32(7), uint32(9)
	for l.sourceCount(one) == l.sourceCount(0) {
		one += 2
	}
	for l.sourceCount(other) == l.sourceCount(one) || l.sourceCount(other) == l.sourceCount(0) {
		other += 2
	}
	first := waiting(one)
	if len(first) != most/sourcePart {
		t.Errorf("one source has %d places, want %d", len(first), most/sourcePart)
	}
	if second := waiting(other); len(second) != most/sourcePart {
		t.Errorf("another source has %d places, want %d", len(second), most/sourcePart)
	}
	for _, ticket := range first {
		ticket.Leave()
		ticket.Leave()
	}
	if again := waiting(one); len(again) == 0 {
		t.Error("a source that has left has no place")
	}
	if unknown := waiting(0); len(unknown) == 0 {
		t.Error("requests without an address have no place")
	}
}

func TestFirstComeFirstServed(t *testing.T) {
	l := New(Options{})
	a, b, c := join(t, l, "k"), join(t, l, "k"), join(t, l, "k")
	other := join(t, l, "o")
	want(t, "at first", listSignaled(a, b, c, other), "x..x")
	a.Leave()
	want(t, "a has left", listSignaled(b, c), "x.")
	a.Leave()
	want(t, "a leaves again", listSignaled(b, c), "..")
	b.Leave()
	want(t, "b has left", listSignaled(c), "x")
	if !l.Busy([]byte("k"), &counter.Limit{}, 1) || l.Busy([]byte("x"), &counter.Limit{}, 1) {
		t.Error("k has a line and x has none")
	}
	c.Leave()
	other.Leave()
	if l.Waiting() != 0 || len(l.queues) != 0 || l.Busy([]byte("k"), &counter.Limit{}, 1) {
		t.Errorf("%d wait in %d queues after all have left", l.Waiting(), len(l.queues))
	}
}

// TestEachLimitHasAQueue: tickets that wait for one limit of a counter do not delay those that wait
// for another limit of it.
func TestEachLimitHasAQueue(t *testing.T) {
	l, low, high := New(Options{}), place("k", 1), place("k", 1)
	low.Limit, high.Limit = limits(t, "1/1s")[0], limits(t, "9/1s")[0]
	a := l.Join(low)
	if l.Join(low) != nil || !l.Busy(low.Key, &low.Limit, 1) || l.Busy(high.Key, &high.Limit, 1) {
		t.Error("a does not wait for the low limit only")
	}
	b := l.Join(high)
	want(t, "at first", listSignaled(a, b), "xx")
	if b.Ask([]Place{high}) != -1 {
		t.Error("b waits behind a")
	}
}

func TestCancelingFreesThePlace(t *testing.T) {
	l := New(Options{})
	a, b, c := join(t, l, "k"), join(t, l, "k"), join(t, l, "k")
	b.Leave()
	want(t, "the one in the middle left", listSignaled(a, c), "x.")
	c.Leave()
	d := join(t, l, "k")
	want(t, "the last one left", listSignaled(a, d), "..")
	a.Leave()
	want(t, "the first one left", listSignaled(d), "x")
}

// TestMovedTicketsKeepTheirOrder: tickets in a queue are ordered by their arrival at any queue.
func TestMovedTicketsKeepTheirOrder(t *testing.T) {
	l := New(Options{})
	a, b, c, d := join(t, l, "a"), join(t, l, "b"), join(t, l, "b"), join(t, l, "a")
	want(t, "at first", listSignaled(a, b, c, d), "xx..")
	c.Move(place("a", 100))
	want(t, "c stands between a and d", listSignaled(a, b, c, d), "....")
	a.Leave()
	want(t, "a has left", listSignaled(c, d), "x.")
	c.Move(place("a", 100))
	want(t, "c stays", listSignaled(c, d), "x.")
	c.Move(place("b", 100))
	want(t, "c is behind b again", listSignaled(b, c, d), "..x")
	if at := c.behind(places("xba")); at != 1 {
		t.Errorf("c is behind b: %d", at)
	}
	b.Move(place("a", 100))
	want(t, "b is ahead of d", listSignaled(b, c, d), "xx.")
	if d.behind(places("a")) != 0 || b.behind(places("ab")) != -1 || c.behind(places("bx")) != -1 {
		t.Error("d has been overtaken, and nobody came before b")
	}
	b.Leave()
	want(t, "d is the first again", listSignaled(d), "x")
}

func TestFull(t *testing.T) {
	l := New(Options{WaitersMax: 4})
	a, b := l.Join(place("k", 2)), l.Join(place("k", 2))
	if l.Join(place("k", 2)) != nil {
		t.Error("a third one in a line of two")
	}
	if l.Join(place("z", 0)) != nil || l.Busy([]byte("z"), &counter.Limit{}, 1) {
		t.Error("a line that nobody may stand in")
	}
	c := l.Join(place("c", 2))
	if c.Move(place("k", 2)) || !l.Busy([]byte("c"), &counter.Limit{}, 1) {
		t.Error("who finds the other line full stays")
	}
	if !b.Move(place("k", 2)) {
		t.Error("who stays needs no place")
	}
	a.Leave()
	if !c.Move(place("k", 2)) || l.Busy([]byte("c"), &counter.Limit{}, 1) {
		t.Error("a place that was freed")
	}
	l.Join(place("b", 2))
	l.Join(place("b", 2))
	if l.Join(place("b", 9)) != nil {
		t.Error("more waiters than there may be")
	}
	if got := l.Waiting(); got != 4 {
		t.Errorf("%d wait, want 4", got)
	}
}

// model is a list of tickets, the oldest first, with the queue of each and whether its turn there
// was signaled.
type model struct {
	tickets   []*Ticket
	keys      []string
	signalled []bool
}

// model.first returns the index of the first ticket in a queue, or -1 if the queue is empty.
func (s *model) first(key string) int { return slices.Index(s.keys, key) }

// TestTheOldestAlwaysHasItsTurn: however tickets join, move and leave, the oldest of each queue has
// been signaled, Behind is right for every ticket, and nothing remains at the end.
func TestTheOldestAlwaysHasItsTurn(t *testing.T) {
	const keys = "abcd"
	random := rand.New(rand.NewPCG(seed.First(t), 1))
	l, s := New(Options{}), new(model)
	for step := range 5000 {
		key := string(keys[random.IntN(len(keys))])
		switch some := len(s.tickets); {
		case some == 0 || some < 12 && random.IntN(3) == 0:
			s.tickets, s.keys, s.signalled = append(s.tickets, join(t, l, key)), append(s.keys, key), append(s.signalled, false)
		case random.IntN(3) == 0:
			at := random.IntN(some)
			s.tickets[at].Leave()
			s.tickets, s.keys, s.signalled = slices.Delete(s.tickets, at, at+1), slices.Delete(s.keys, at, at+1), slices.Delete(s.signalled, at, at+1)
		default:
			at := random.IntN(some)
			s.tickets[at].Move(place(key, 100))
			s.keys[at], s.signalled[at] = key, false
		}
		lines := map[string]bool{}
		for i, ticket := range s.tickets {
			lines[s.keys[i]] = true
			first := s.first(s.keys[i]) == i
			if s.signalled[i] = first && (listSignaled(ticket) == "x" || s.signalled[i]); first && !s.signalled[i] {
				t.Fatalf("step %d: ticket %d is the first of %s and was not told", step, i, s.keys[i])
			}
			before := slices.IndexFunc([]byte(keys), func(key byte) bool { at := s.first(string(key)); return at >= 0 && at < i })
			if got := ticket.behind(places(keys)); got != before {
				t.Fatalf("step %d: ticket %d is behind an older one in queue %d, want %d", step, i, got, before)
			}
		}
		if len(l.queues) != len(lines) || l.Waiting() != len(s.tickets) {
			t.Fatalf("step %d: %d queues and %d waiters, want %d and %d", step, len(l.queues), l.Waiting(), len(lines), len(s.tickets))
		}
	}
}

// TestManyAtOnce: goroutines wait in two queues, which they join in opposite orders. All goroutines
// are served, and no two that need both queues have their turn at the same time.
func TestManyAtOnce(t *testing.T) {
	l, served := New(Options{}), 0
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			in := places([]string{"ab", "ba", "a", "b"}[i%4])
			for range 50 {
				ticket := l.Join(in[0])
				for <-ticket.Turn(); ; <-ticket.Turn() {
					next := ticket.Ask(in)
					if next < 0 {
						break
					}
					ticket.Move(in[next])
				}
				if len(in) == 2 {
					served++ // the race detector reports this access unless only one ticket at a time has both turns
				}
				ticket.Leave()
			}
		})
	}
	group.Wait()
	want(t, "served", fmt.Sprint(served), "1600")
	if l.Waiting() != 0 || len(l.queues) != 0 {
		t.Errorf("%d wait in %d queues", l.Waiting(), len(l.queues))
	}
}

func TestAskingAllocatesNothing(t *testing.T) {
	l := New(Options{})
	key := []byte("rl1:shop:api:{192.0.2.7}:60s:sw")
	for _, what := range []string{"nobody waits", "somebody waits"} {
		if got := testing.AllocsPerRun(100, func() { l.Busy(key, &counter.Limit{}, 1) }); got != 0 {
			t.Errorf("%s: %v allocations", what, got)
		}
		l.Join(Place{Key: key, Max: 1})
	}
}

func BenchmarkBusy(b *testing.B) {
	key := []byte("rl1:shop:api:{192.0.2.7}:60s:sw")
	for _, waiting := range []int{0, 1000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			l := New(Options{})
			for range waiting {
				l.Join(Place{Key: key, Max: waiting})
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					l.Busy(key, &counter.Limit{}, 1)
				}
			})
		})
	}
}

// TestSourcesUseAllCounts: every count is used, whichever bits the sources have in common.
func TestSourcesUseAllCounts(t *testing.T) {
	for _, shift := range []int{1, 11, 16} {
		l := New(Options{WaitersMax: 1 << 20})
		for i := range uint32(32 * sourceCounts) {
			l.Join(Place{Key: fmt.Appendf(nil, "%d", i), Max: 1, Source: i<<shift | 1})
		}
		for i, n := range l.sources {
			if n == 0 || n > 4*32 {
				t.Errorf("shift %d: count %d has %d of %d sources", shift, i, n, 32*sourceCounts)
			}
		}
	}
}
