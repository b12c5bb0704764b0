// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// mistake is a rule of the package that a simulation deliberately breaks, so that a test can show
// that the simulation detects this.
type mistake uint8

const (
	none mistake = iota
	restoresTwice
	ignoresTheWindow
	lendsWithoutCharge
	ignoresTheShares
	mistakes
	usesLaterUnitsAtOnce // found by another test
)

var mistakeNames = [...]string{"none", "restores a loan twice", "restores into the present window", "lends without a charge",
	"lends to other shares"}

// place is a region in the simulation, with its own store and its own clock.
type place struct {
	store  *memstore.Store
	here   policy.Division
	whole  counter.Limit // by the region's policy
	limit  counter.Limit
	offset counter.Micros
}

// use is an admitted request: its region's time and its units.
type use struct {
	at    counter.Micros // by the region's clock
	units int64
}

// world simulates several regions that share one limit.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	now     counter.Micros
	whole   counter.Limit
	key     []byte
	places  []*place
	uses    []use
	pending []func() // loans under way
	mistake mistake
	loans   int
	later   int  // loans with units for later
	safe    bool // nothing is lost
	crowded bool // agents do something else between the calls of their stores
	inside  bool // whether such a call is under way

	checks  [1]counter.Check // of the present request
	results [1]counter.Result
}

func newWorld(t *testing.T, rng *rand.Rand, m mistake) *world {
	t.Helper()
	w := &world{t: t, rng: rng, now: 1_700_006_400 * counter.Second, mistake: m}
	regions := 2 + rng.IntN(3)
	var division policy.Division
	var sum int64
	for i := range regions {
		division.Shares[i] = uint16(1 + rng.IntN(3))
		sum += int64(division.Shares[i])
	}
	algorithm := []counter.Algorithm{counter.FixedWindow, counter.SlidingWindow}[rng.IntN(2)]
	var err error
	if w.whole, err = counter.NewLimit(algorithm, sum*(1+rng.Int64N(20)), counter.Second, 0); err != nil {
		t.Fatal(err)
	}
	w.key = []byte("rl1:n:r:{c}" + counter.KeyTail(&w.whole))
	for i := range regions {
		p := &place{here: division, whole: w.whole}
		p.here.Self = uint8(i)
		if p.limit, err = w.whole.Resized(p.here.Part(w.whole.Count()), 0); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(2) == 0 {
			p.offset = counter.Micros(rng.Int64N(int64(3*counter.Second))) - 3*counter.Second/2
		}
		// A store of few counters is made quickly, and need not be closed.
		if p.store, err = memstore.New(memstore.Options{CountersMax: 1000, Now: func() counter.Micros { return w.now + p.offset }}); err != nil {
			t.Fatal(err)
		}
		w.places = append(w.places, p)
	}
	return w
}

// world.change makes one of the two steps in which shares change: a share and the limit are
// lowered, or another share and the limit are raised. Each region gets the policy before or after
// this step, at random.
func (w *world) change() {
	before := w.places[0].here
	after, unit := before, w.whole.Count()/sharesOf(before)
	lowered, others := w.rng.IntN(len(w.places)), w.rng.IntN(len(w.places)-1)
	if after.Shares[lowered] == 1 {
		return
	}
	after.Shares[lowered]--
	if w.rng.IntN(2) == 0 {
		before = after
		after.Shares[(lowered+1+others)%len(w.places)]++
	}
	for i, p := range w.places {
		if p.here = before; w.rng.IntN(2) == 0 {
			p.here = after
		}
		p.here.Self = uint8(i)
		var err error
		if p.whole, err = w.whole.Resized(unit*sharesOf(p.here), 0); err != nil {
			w.t.Fatal(err)
		}
		p.limit, _ = p.here.Limit(&p.whole)
	}
}

func sharesOf(d policy.Division) (sum int64) {
	for _, share := range d.Shares {
		sum += int64(share)
	}
	return sum
}

// world.simulate simulates requests and loans in some windows. The loans arrive late, are lost, or
// are asked for twice.
func (w *world) simulate() {
	for range 40 * len(w.places) * int(w.whole.Count()) {
		w.now += counter.Micros(w.rng.Int64N(int64(counter.Second) / (4 * w.whole.Count())))
		switch p := w.places[w.rng.IntN(len(w.places))]; {
		case w.rng.IntN(4) > 0:
			w.request(p, 1+w.rng.Int64N(2))
		case w.rng.IntN(2) == 0 && len(w.pending) > 0:
			at := w.rng.IntN(len(w.pending))
			arrive := w.pending[at]
			w.pending = slices.Delete(w.pending, at, at+1)
			if w.rng.IntN(5) > 0 { // otherwise it is lost
				arrive()
			}
		default:
			w.borrow(p, w.places[w.rng.IntN(len(w.places))])
		}
	}
}

func (w *world) request(p *place, cost int64) {
	w.checks[0] = counter.Check{Key: w.key, Limit: &p.limit, Cost: cost}
	if err := p.store.Take(context.Background(), w.checks[:], w.results[:]); err != nil {
		w.t.Fatal(err)
	}
	if r := &w.results[0]; r.Granted > 0 {
		w.uses = append(w.uses, use{r.At, cost})
	}
}

// world.borrow makes one region ask another region for units.
func (w *world) borrow(borrower, lender *place) {
	if borrower == lender {
		return
	}
	q := &Question{Key: w.key, Limit: borrower.whole.String(), Part: borrower.limit.Count(), Want: 1 + w.rng.Int64N(w.whole.Count()),
		Short: w.safe || w.rng.IntN(2) == 0, Shares: borrower.here.Shares}
	if w.rng.IntN(2) == 0 {
		q.Need = w.rng.Int64N(w.whole.Count() + 1)
	}
	if w.mistake == ignoresTheShares {
		q.Shares = lender.here.Shares
		defer func() { q.Shares = borrower.here.Shares }() // for the borrower
	}
	l, err := Lend(context.Background(), lender.store, lender.here, "rl1:n:", q, tally{})
	if errors.Is(err, errShares) {
		return
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if w.mistake == lendsWithoutCharge {
		l = Loan{Units: q.Want, Receipt: (w.now + lender.offset) - (w.now+lender.offset)%w.whole.Window()}
	}
	if l.Units == 0 {
		return
	}
	w.loans++
	w.pending = append(w.pending, w.arrival(borrower, lender, q, l))
}

// world.arrival returns the function to call when a loan arrives, or when its next part is
// restored.
func (w *world) arrival(borrower, lender *place, q *Question, l Loan) func() {
	return func() {
		if w.mistake == ignoresTheWindow {
			now := w.now + borrower.offset
			l.Receipt, l.At = now-now%w.whole.Window(), 0
		}
		for range 1 + btoi(w.mistake == restoresTwice) {
			restored, err := Restore(context.Background(), borrower.store, borrower.here, "rl1:n:", q, l)
			if early := new(EarlyError); errors.As(err, &early) {
				restored, err = 0, nil
			}
			if err != nil {
				w.t.Fatal(err)
			}
			if rest := l.Units - restored; rest > 0 && restored > 0 && !w.safe && w.mistake == none && w.rng.IntN(2) == 0 {
				l.Units = rest // the next part, when requests have used this one
				w.pending = append(w.pending, w.arrival(borrower, lender, q, l))
			} else if rest > 0 && (w.safe || w.rng.IntN(8) > 0) && w.mistake == none {
				w.giveBack(lender, q, Loan{Units: rest, Receipt: l.Receipt})
			}
		}
	}
}

func (w *world) giveBack(lender *place, q *Question, rest Loan) {
	if _, err := Restore(context.Background(), lender.store, lender.here, "rl1:n:", q, rest); err != nil {
		w.t.Fatal(err)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// world.over returns by how many units the admitted requests exceed the limit in an aligned window,
// and by how many they would exceed it in one sliding window.
func (w *world) over() (aligned, weighted int64) {
	// if several admitted requests have the same time, the last one decides
	slices.SortFunc(w.uses, func(a, b use) int { return cmp.Compare(a.at, b.at) })
	window := w.whole.Window()
	var start counter.Micros
	var current, previous int64
	for _, u := range w.uses {
		if begin := u.at - u.at%window; begin != start {
			previous = 0
			if begin == start+window && w.whole.Algorithm() == counter.SlidingWindow {
				previous = current
			}
			start, current = begin, 0
		}
		current += u.units
		aligned = max(aligned, current-w.whole.Count())
		weighted = max(weighted, current+previous*int64(start+window-u.at)/int64(window)-w.whole.Count())
	}
	return aligned, weighted
}

// TestNeverOver simulates random requests and loans in regions with clocks of their own. It tests
// that what the regions admit in an aligned window never exceeds the limit, and that the weighted
// sum of sliding windows exceeds the limit only by the units that each region rounds down.
func TestNeverOver(t *testing.T) {
	first, rounds := seed.First(t), seed.Rounds(t, racescale.Fewer(150))
	requests, loans := 0, 0
	for n := first; n < first+rounds; n++ {
		rng := seed.Source(n)
		w := newWorld(t, rng, none)
		if rng.IntN(2) == 0 {
			w.change()
		}
		if rng.IntN(4) == 0 {
			w.places[0].offset += counter.Hour
		}
		w.simulate()
		requests, loans = requests+len(w.uses), loans+w.loans
		aligned, weighted := w.over()
		if aligned > 0 || weighted >= int64(len(w.places)) {
			t.Fatalf("PENSTOCK_SEED=%d: %d over %v in an aligned window, %d over in a weighted one, in %d regions", n, aligned, w.whole, weighted, len(w.places))
		}
		if played := n - first + 1; played == rounds || played%10_000 == 0 {
			t.Logf("%d of %d scenes from PENSTOCK_SEED=%d: %d admitted requests and %d loans, none over", played, rounds, first, requests, loans)
		}
	}
	if loans == 0 {
		t.Error("no units were lent")
	}
}

// TestMistakesAreFound simulates the same with one mistake at a time. The test fails unless each
// mistake leads to an exceeded limit.
func TestMistakesAreFound(t *testing.T) {
	for m := none + 1; m < mistakes; m++ {
		t.Run(mistakeNames[m], func(t *testing.T) {
			rng := seed.Random(t)
			for range 1000 {
				w := newWorld(t, rng, m)
				if m == ignoresTheShares {
					w.change()
				}
				w.simulate()
				if aligned, _ := w.over(); aligned > 0 {
					return
				}
			}
			t.Error("not found in 1000 scenes")
		})
	}
}

// TestTheWholeLimitIsUsable: one region that asks again and again gets all units of the other
// regions.
func TestTheWholeLimitIsUsable(t *testing.T) {
	rng := seed.Random(t)
	for range racescale.Fewer(50) {
		w := newWorld(t, rng, none)
		w.safe = true
		for _, p := range w.places {
			p.offset = 0
		}
		for range 64 {
			for range w.whole.Count() {
				w.request(w.places[0], 1)
			}
			for _, lender := range w.places[1:] {
				w.borrow(w.places[0], lender)
			}
			for _, arrive := range w.pending {
				arrive()
			}
			w.pending = nil
		}
		if n := int64(len(w.uses)); n != w.whole.Count() {
			t.Errorf("%d of %v were admitted in one of %d regions", n, w.whole, len(w.places))
		}
	}
}

// TestQuestionsFromOutside: what another machine sends is checked.
func TestQuestionsFromOutside(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), none)
	p := w.places[0]
	good := Question{Key: w.key, Limit: w.whole.String(), Want: 1, Shares: p.here.Shares}
	for name, spoil := range map[string]func(q *Question){
		"limit":     func(q *Question) { q.Limit = "many" },
		"namespace": func(q *Question) { q.Key = []byte("rl1:other:r:{c}" + counter.KeyTail(&w.whole)) },
		"window":    func(q *Question) { q.Key = []byte("rl1:n:r:{c}:7s:fw") },
		"bucket":    func(q *Question) { q.Limit, q.Key = "5/1s burst 5", []byte("rl1:n:r:{c}:1s:tb") },
		"nothing":   func(q *Question) { q.Want = 0 },
		"too much":  func(q *Question) { q.Want = counter.CountMax + 1 },
		"long":      func(q *Question) { q.Key = append([]byte("rl1:n:"), make([]byte, 4096)...) },
		"shares":    func(q *Question) { q.Shares[0]++ },
		"bounds":    func(q *Question) { q.Bounds = &counter.Bounds{1, 2, 3, 4} },
	} {
		q := good
		spoil(&q)
		if l, err := Lend(t.Context(), p.store, p.here, "rl1:n:", &q, tally{}); err == nil {
			t.Errorf("%s: lent %+v", name, l)
		}
		if n, err := Restore(t.Context(), p.store, p.here, "rl1:n:", &q, Loan{Units: 1, Receipt: 1}); err == nil {
			t.Errorf("%s: restored %d", name, n)
		}
	}
	for _, l := range []Loan{{}, {Units: -1, Receipt: 1}, {Units: counter.CountMax + 1, Receipt: 1}, {Units: 1}} {
		if n, err := Restore(t.Context(), p.store, p.here, "rl1:n:", &good, l); err == nil {
			t.Errorf("%+v: restored %d", l, n)
		}
	}
}
