// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core"
)

// seedVariable is the environment variable that repeats a random run.
const seedVariable = "PENSTOCK_SEED"

// Seed returns the seed of a random test: the one in PENSTOCK_SEED, or a new one, and prints it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Logf("repeat with %s=%d", seedVariable, seed)
	return seed
}

// RunRandom sends steps random calls to a store and to [Model], and fails at the first that is answered differently or
// after which they do not hold the same. Every operation is asked, of limits from 1 to 2^40 in windows from 1 ms to 31 d
// with 1 to 8 checks a call, at the edges of windows, by clocks that jump forth and back, under limits that change.
func RunRandom(t *testing.T, open func(t testing.TB) Subject, steps int) {
	compare(newExaminer(t, open(t)), newTraffic(Seed(t)), steps)
}

// pair is a store and the model, asked the same.
type pair struct {
	*examiner
	model   *Model
	written map[string]core.Limit // under which limit the model last kept a counter
	fresh   map[string]bool       // it was as good as fresh at some instant since, so the store may have dropped it
}

// waitSlack is how far waits, resets and nexts may differ: those are derived, and not kept.
const waitSlack core.Micros = 1

func compare(e *examiner, tr *traffic, steps int) {
	p := &pair{examiner: e, model: &Model{}, written: map[string]core.Limit{}, fresh: map[string]bool{}}
	for step := range steps {
		checks := tr.next()
		if tr.calls%trafficLife == 1 { // the counters of before are never asked for again
			clear(p.written)
			clear(p.fresh)
			p.model = &Model{}
		}
		e.at(tr.now)
		p.model.Pin(tr.now)
		p.forget(checks)
		before := p.slots(checks)
		want := make([]core.Result, len(checks))
		if err := p.model.Take(context.Background(), checks, want); err != nil {
			e.Fatalf("step %d: the model: %v", step, err)
		}
		got := e.take(checks...)
		for i := range checks {
			if !alike(&want[i], &got[i]) {
				e.Fatalf("step %d at %d, check %d of\n%s: the answer (-model +store):\n%s", step, tr.now, i+1,
					describe(checks), cmp.Diff(want[i], got[i]))
			}
			p.hold(step, checks, i, &before[i])
		}
		tr.heard(checks, want)
	}
}

// forget drops from the model what the store was free to drop and dropped.
func (p *pair) forget(checks []core.Check) {
	for key, l := range p.written {
		if state, marks := p.model.Counter(p, []byte(key), &l); nothing(kept(state, marks, &l, p.now)) {
			p.fresh[key] = true
		}
	}
	for i := range checks {
		key, l := checks[i].Key, checks[i].Limit
		if !p.fresh[string(key)] {
			continue
		}
		if state, marks := p.Counter(p, key, l); state == (core.State{}) && len(marks) == 0 {
			delete(p.model.counters, string(key))
			delete(p.fresh, string(key))
			delete(p.written, string(key))
			continue
		}
		// Fresh under the limit it was written under, and not under an edited one: the store may drop it in this very
		// call, or not. The edit waits.
		written := p.written[string(key)]
		if state, marks := p.model.Counter(p, key, l); nothing(kept(state, marks, &written, p.now)) {
			checks[i].Limit = &written
		}
	}
}

// slots returns what the model holds for the checks' counters.
func (p *pair) slots(checks []core.Check) []core.Slot {
	slots := make([]core.Slot, len(checks))
	for i := range checks {
		slots[i].State, slots[i].Marks = p.model.Counter(p, checks[i].Key, checks[i].Limit)
	}
	return slots
}

// hold fails the test if the model and the store do not hold the same for a check's counter.
func (p *pair) hold(step int, checks []core.Check, i int, before *core.Slot) {
	c := &checks[i]
	wantState, wantMarks := p.model.Counter(p, c.Key, c.Limit)
	gotState, gotMarks := p.Counter(p, c.Key, c.Limit)
	want, got := kept(wantState, wantMarks, c.Limit, p.now), kept(gotState, gotMarks, c.Limit, p.now)
	if !sameSlot(&want, &got) {
		p.Fatalf("step %d at %d, check %d of\n%s: the counter (-model +store):\n%s", step, p.now, i+1,
			describe(checks), cmp.Diff(want, got, slotsByContent))
	}
	if !sameSlot(before, &core.Slot{State: wantState, Marks: wantMarks}) {
		p.written[string(c.Key)] = *c.Limit
		p.fresh[string(c.Key)] = nothing(want)
	}
}

// alike compares two answers: what is decided exactly, what is derived within waitSlack.
func alike(a, b *core.Result) bool {
	x, y := *a, *b
	for _, spans := range [][2]*core.Micros{{&x.Wait, &y.Wait}, {&x.Reset, &y.Reset}, {&x.Next, &y.Next}} {
		if d := *spans[0] - *spans[1]; d >= -waitSlack && d <= waitSlack && (*spans[0] == 0) == (*spans[1] == 0) {
			*spans[1] = *spans[0]
		}
	}
	return x == y
}

func describe(checks []core.Check) string {
	var b strings.Builder
	for i := range checks {
		c := &checks[i]
		fmt.Fprintf(&b, "  op %d shadow %t %q (%s) cost %d", c.Op, c.Shadow, c.Key, c.Limit, c.Cost)
		if c.Op == core.OpUpTo {
			fmt.Fprintf(&b, " min %d max %d share %d", c.Min, c.Max, c.ShareMille)
		}
		if c.Op == core.OpGiveBack {
			fmt.Fprintf(&b, " receipt %d", c.Receipt)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
