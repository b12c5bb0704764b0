// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// lapse is a rule of package writeoff that a simulation deliberately breaks, so that a test can
// show that the simulation detects this.
type lapse uint8

const (
	noLapse lapse = iota
	lendsAtOnce
	returnsAtOnce
	lendsUnread
	returnsUnheard
	lapses
)

var lapseNames = [...]string{"none", "lends the part in the window of the loss", "uses the part in the window of the return",
	"lends by an old reading", "does not hear that it was written off"}

// skewMax is how much the clocks of regions differ at most. A steward acts by a state that it has
// read at most freshMax ago.
const (
	skewMax  = 3 * counter.Second
	freshMax = counter.Second / 2
)

// site is a region that may be lost and come back.
type site struct {
	*place
	name  string
	redis writeoff.State // what its Redis holds
	knows writeoff.State // what its processes know
	read  counter.Micros // when they read it
	down  bool
	cut   bool // it reaches no other region, and none reaches it
}

// losses is a world in which regions are lost and taken back.
type losses struct {
	*world
	sites  []*site
	lapse  lapse
	lentOf int // loans of the part of a region that was written off
}

func newLosses(t *testing.T, rng *rand.Rand, l lapse) *losses {
	t.Helper()
	w := &losses{world: newWorld(t, rng, none), lapse: l}
	var names []string
	for i := range w.places {
		names = append(names, strconv.Itoa(i))
	}
	for i, p := range w.places {
		w.sites = append(w.sites, &site{place: p, name: names[i], redis: writeoff.State{Here: names[i], Names: names}, read: w.now})
	}
	return w
}

// losses.clock returns the clock of a region.
func (w *losses) clock(s *site) counter.Micros { return w.now + s.offset }

// losses.sync lets the processes of a region read its Redis, and write what they know.
func (w *losses) sync(s *site) {
	s.redis.Merge(s.knows.Entries)
	s.knows.Merge(s.redis.Entries)
	s.read = w.now
}

// losses.gossip makes two regions exchange what they know about the state of the regions.
func (w *losses) gossip(a, b *site) {
	if a.down || b.down || a.cut != b.cut {
		return
	}
	a.knows.Merge(b.knows.Entries)
	b.knows.Merge(a.knows.Entries)
}

// losses.change changes the state of the regions as an operator does. The change reaches all
// regions that are neither down nor cut off.
func (w *losses) change(do func(s *writeoff.State, reached []string, now counter.Micros) error) {
	w.t.Helper()
	all, now := writeoff.State{}, counter.Micros(0)
	var reached []string
	for _, s := range w.sites {
		if !s.down && !s.cut {
			reached, now = append(reached, s.name), max(now, w.clock(s))
			all.Merge(s.redis.Entries)
			all.Names = s.redis.Names
		}
	}
	if err := do(&all, reached, now); err != nil {
		w.t.Fatal(err)
	}
	for _, s := range w.sites {
		if !s.down && !s.cut {
			s.redis.Merge(all.Entries)
		}
	}
}

func (w *losses) forget(lost *site) {
	w.t.Helper()
	w.change(func(s *writeoff.State, reached []string, now counter.Micros) error {
		since := now + skewMax
		if w.lapse == lendsAtOnce {
			since = 1
		}
		return s.Forget(lost.name, reached, since)
	})
}

func (w *losses) restore(lost *site) {
	w.t.Helper()
	w.change(func(s *writeoff.State, reached []string, now counter.Micros) error {
		since := now + skewMax + freshMax
		switch w.lapse {
		case returnsAtOnce:
			since = 1
		case lendsUnread:
			since = now
		}
		if err := s.Restore(lost.name, reached, since); err != nil || w.lapse != returnsAtOnce {
			return err
		}
		e := s.Entries[lost.name]
		e.Since = since
		s.Entries[lost.name] = e
		return nil
	})
}

// losses.shut reports whether a region knows that it must not use its part of the limit now.
func (w *losses) shut(s *site) bool {
	return s.knows.Entries[s.name].Shuts(&s.limit, nil, w.clock(s))
}

// losses.run simulates a number of random steps: requests, loans and messages.
func (w *losses) run(steps int) {
	for range steps {
		w.now += counter.Micros(w.rng.Int64N(int64(counter.Second) / (4 * w.whole.Count())))
		p, other := w.sites[w.rng.IntN(len(w.sites))], w.sites[w.rng.IntN(len(w.sites))]
		if p.down {
			continue
		}
		switch w.rng.IntN(10) {
		case 0, 1, 2, 3, 4:
			if !w.shut(p) {
				w.request(p.place, 1+w.rng.Int64N(2))
			}
		case 5:
			w.arrive()
		case 6:
			if !other.down && other.cut == p.cut && !w.shut(other) {
				w.borrow(p.place, other.place)
			}
		case 7:
			w.borrowOf(p, other)
		case 8:
			if w.lapse != lendsUnread || w.rng.IntN(100) == 0 {
				w.sync(p)
			}
		case 9:
			w.gossip(p, other)
		}
	}
}

// losses.arrive delivers or loses a loan. A loan to a region that is down is lost, too.
func (w *losses) arrive() {
	if len(w.pending) == 0 {
		return
	}
	at := w.rng.IntN(len(w.pending))
	arrive := w.pending[at]
	w.pending = slices.Delete(w.pending, at, at+1)
	if w.rng.IntN(5) > 0 {
		arrive()
	}
}

// losses.borrowOf makes the region p borrow units of the region named lost. If that region was
// written off, its steward lends its units, so borrowOf asks the steward.
func (w *losses) borrowOf(p, lost *site) {
	e := p.knows.Entries[lost.name]
	at := slices.IndexFunc(w.sites, func(s *site) bool { return s.name == e.Steward })
	if !e.Forgotten() || at < 0 || p == lost {
		return
	}
	steward := w.sites[at]
	known := steward.knows.Entries[lost.name]
	fresh := w.now-steward.read < freshMax || w.lapse == lendsUnread
	if steward.down || steward.cut != p.cut || !fresh || !known.Lends(steward.name, &lost.limit, nil, w.clock(steward)) {
		return
	}
	q := &Question{Key: w.key, Limit: w.whole.String(), Want: 1 + w.rng.Int64N(w.whole.Count()), Short: true, Shares: p.here.Shares}
	asked := *q
	asked.Key = writeoff.PartKey("rl1:n:", w.key, lost.name, known.Generation)
	here := steward.here
	here.Self = lost.here.Self
	l, err := Lend(context.Background(), steward.store, here, "rl1:n:", &asked, tally{})
	if err != nil && !errors.Is(err, errShares) {
		w.t.Fatal(err)
	}
	if l.Units == 0 {
		return
	}
	w.lentOf++
	w.pending = append(w.pending, func() {
		restored, err := Restore(context.Background(), p.store, p.here, "rl1:n:", q, l)
		if early := new(EarlyError); errors.As(err, &early) {
			return
		}
		if err != nil {
			w.t.Fatal(err)
		}
		if rest := l.Units - restored; rest > 0 && w.rng.IntN(8) > 0 {
			if _, err := Restore(context.Background(), steward.store, here, "rl1:n:", &asked, Loan{Units: rest, Receipt: l.Receipt}); err != nil {
				w.t.Fatal(err)
			}
		}
	})
}

// losses.tellAll makes all regions that can reach each other exchange what they know, until all of
// them know the same.
func (w *losses) tellAll() {
	for range 2 {
		for _, a := range w.sites {
			for _, b := range w.sites {
				if w.gossip(a, b); !a.down {
					w.sync(a)
				}
			}
		}
	}
}

// losses.lose simulates the loss of a region and its return. If unaware is true, the region is only
// cut off from the other regions, and still admits requests while they use its part.
func (w *losses) lose(lost *site, unaware bool) {
	steps := 25 * len(w.sites) * int(w.whole.Count())
	w.run(w.rng.IntN(steps))
	lost.down, lost.cut = !unaware, unaware
	w.run(w.rng.IntN(steps / 4))
	w.forget(lost)
	if w.rng.IntN(2) == 0 {
		w.forget(lost) // that changes nothing
	}
	w.run(w.rng.IntN(steps))
	if steward := w.sites[slices.IndexFunc(w.sites, func(s *site) bool { return s != lost })]; len(w.sites) > 2 && w.rng.IntN(3) == 0 {
		steward.down = true
		w.forget(steward)
		w.run(w.rng.IntN(steps))
		steward.down = false
		w.tellAll()
		w.restore(steward)
	}
	w.run(w.rng.IntN(steps))
	lost.down, lost.cut = false, false
	if w.lapse != returnsUnheard {
		w.tellAll()
	}
	w.run(w.rng.IntN(steps))
	w.tellAll()
	w.restore(lost)
	w.run(w.rng.IntN(steps))
}

// TestALostRegionIsNeverOver simulates random schedules in which a region is lost and written off,
// comes back, and is taken back. The same may happen to the steward meanwhile. No limit is exceeded
// in an aligned window. In a sliding window, the weighted sum exceeds the limit by less than a unit
// for each counter. A region that was written off has two counters.
func TestALostRegionIsNeverOver(t *testing.T) {
	rng := seed.Random(t)
	lent := 0
	for range racescale.Fewer(300) {
		w := newLosses(t, rng, noLapse)
		w.lose(w.sites[rng.IntN(len(w.sites))], false)
		lent += w.lentOf
		aligned, weighted := w.over()
		if aligned > 0 || weighted >= int64(2*len(w.places)) {
			t.Fatalf("%d over %v in an aligned window, %d over in a weighted one, in %d regions", aligned, w.whole, weighted, len(w.places))
		}
	}
	if lent == 0 {
		t.Error("no units of a lost region were lent")
	}
}

// TestAnUnawareRegionExceedsByItsPart tests a region that was written off by mistake: it runs on,
// but is cut off from the other regions. All regions together exceed a limit by at most that
// region's part.
func TestAnUnawareRegionExceedsByItsPart(t *testing.T) {
	rng := seed.Random(t)
	var over int64
	for range racescale.Fewer(300) {
		w := newLosses(t, rng, noLapse)
		lost := w.sites[rng.IntN(len(w.sites))]
		w.lose(lost, true)
		aligned, _ := w.over()
		if over = max(over, aligned); aligned > lost.limit.Count() {
			t.Fatalf("%d over %v, more than the part of %d", aligned, w.whole, lost.limit.Count())
		}
	}
	if over == 0 {
		t.Error("no limit was exceeded, so the test shows nothing")
	}
}

// TestLapsesAreFound simulates losses with one lapse at a time. The test fails unless each lapse
// leads to an exceeded limit.
func TestLapsesAreFound(t *testing.T) {
	for l := noLapse + 1; l < lapses; l++ {
		t.Run(lapseNames[l], func(t *testing.T) {
			rng := seed.Random(t)
			for range 2000 {
				w := newLosses(t, rng, l)
				w.lose(w.sites[rng.IntN(len(w.sites))], false)
				if aligned, _ := w.over(); aligned > 0 {
					return
				}
			}
			t.Error("not found in 2000 schedules")
		})
	}
}
