// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"testing"

	"github.com/penstock/penstock/internal/test/seed"
)

func mustParse(t testing.TB, text string) Limit {
	t.Helper()
	l, err := ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDecideDoesNotAllocate(t *testing.T) {
	limits := []Limit{mustParse(t, "100/1m fw"), mustParse(t, "100/1m sw"), mustParse(t, "100/1m tb"), mustParse(t, "7/3s burst 20")}
	checks, slots, results := make([]Check, len(limits)), make([]Slot, len(limits)), make([]Result, len(limits))
	for i := range checks {
		checks[i] = Check{Key: []byte{byte(i)}, Limit: &limits[i], Cost: 1}
	}
	now := noon
	for _, op := range []Op{OpTake, OpUpTo, OpLook, OpRefund, OpForce} {
		for i := range checks {
			checks[i].Op, checks[i].Min, checks[i].Max, checks[i].Receipt = op, 1, 5, now
		}
		allocs := testing.AllocsPerRun(1000, func() {
			now += 10 * Millisecond
			Decide(now, checks, slots, results)
		})
		if allocs != 0 {
			t.Errorf("op %d: %v allocations", op, allocs)
		}
	}
}

// TestFreshCountersBehaveLikeNone: from the instant that Fresh returns, a counter decides like one
// that never existed, so a store can drop it. Just before that instant it does not.
func TestFreshCountersBehaveLikeNone(t *testing.T) {
	rng := seed.Random(t)
	for _, a := range []Algorithm{FixedWindow, SlidingWindow, SlidingLog, TokenBucket} {
		for range 2_000 {
			burst := int64(0)
			if a == TokenBucket {
				burst = 1 + rng.Int64N(20)
			}
			l, err := NewLimit(a, 1+rng.Int64N(30), WindowMin+Micros(rng.Int64N(int64(Second))), burst)
			if err != nil {
				t.Fatal(err)
			}
			g := newGreedy(rng, l)
			for range 1 + rng.IntN(10) {
				g.ask([]Op{OpTake, OpForce}[rng.IntN(2)], 1+rng.Int64N(l.burst), 0)
				g.now += Micros(rng.Int64N(int64(l.window)/2 + 1))
			}
			g.ask(OpForce, 1, 0)
			fresh := l.Fresh(&g.slot[0])
			none := newGreedy(rng, l)
			// The weight of a sliding window is rounded down to zero earlier than that.
			if g.now = fresh - 1; a != SlidingWindow {
				if r := g.look(); r.Remaining == l.burst {
					t.Fatalf("%s: a microsecond before it is fresh: %+v", l, r)
				}
			}
			for range 3 {
				g.now += 1 + Micros(rng.Int64N(2)*rng.Int64N(int64(l.window)))
				none.now = g.now
				if got, want := g.look(), none.look(); got != want {
					t.Fatalf("%s at %d, fresh from %d:\n%+v, want as of none\n%+v", l, g.now, fresh, got, want)
				}
			}
		}
	}
}

// TestFullBucketAheadOfTheClockIsNotFresh: if the clock goes back after a refund has filled a
// bucket, the bucket is not fresh until the clock reaches the instant of the refund again.
func TestFullBucketAheadOfTheClockIsNotFresh(t *testing.T) {
	l := mustParse(t, "3/3d token_bucket")
	s := Slot{State: State{At: noon, Used: 0, Aux: l.unit}}
	if got := l.Fresh(&s); got != noon {
		t.Errorf("fresh from %d, want %d", got, noon)
	}
}

// greedyClient.look performs the check on a copy of the slot, so that the slot does not advance.
func (g *greedyClient) look() Result {
	copied := *g
	copied.slot = []Slot{{State: g.slot[0].State, Marks: append([]Mark(nil), g.slot[0].Marks...)}}
	return copied.ask(OpLook, 1, 0)
}

// TestUnwrittenSlotsNeedNotBeKept: if a check does not set Write, the store can discard the slot
// and read it again later.
func TestUnwrittenSlotsNeedNotBeKept(t *testing.T) {
	rng := seed.Random(t)
	for _, text := range []string{"10/1s fw", "10/1s sw", "10/1s tb", "7/3s burst 20", "1000003/31d tb"} {
		l := mustParse(t, text)
		kept, all := newGreedy(rng, l), newGreedy(rng, l)
		all.now = kept.now
		for range 5_000 {
			step := Micros(rng.Int64N(int64(l.window) / 4))
			kept.now, all.now = kept.now+step, all.now+step
			op, cost := []Op{OpTake, OpLook, OpForce}[rng.IntN(3)], rng.Int64N(l.burst+2)
			before := kept.slot[0]
			if got, want := kept.ask(op, cost, 0), all.ask(op, cost, 0); got != want {
				t.Fatalf("%s: %+v, and %+v if every slot is kept", l, got, want)
			}
			if !kept.slot[0].Write {
				kept.slot[0] = before
			}
		}
	}
}
