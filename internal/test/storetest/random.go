// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	corecounter "github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/seed"
)

// RunRandom sends the given number of random calls to a store and to [Model]. It fails the test at
// the first call that they answer differently, or after which their states differ. A call has 1 to
// 10 checks, some of which may be checks of penalties. The calls use every operation. Limits are
// from 1 to 2^40, in windows from 1 ms to 31 d and in calendar windows of several zones. Clocks
// jump, callers' clocks are behind, and limits, penalties and zones change.
func RunRandom(t *testing.T, open func(t testing.TB) Subject, steps int) {
	compare(newExaminer(t, open(t)), newTraffic(seed.First(t)), steps)
}

// pair is a store under exam together with the model. Both get the same calls.
type pair struct {
	*examiner
	traffic *traffic
	model   *Model
	// written holds, by key, the checks that wrote the model's present state. From some instant on,
	// a state equals a new counter. The instant depends on the limit. If checks with different
	// limits wrote the same state, a store may use the instant of any of these limits.
	written map[string][]storedState
	// fresh holds the keys whose state has equalled a new counter at some instant since it was
	// written. The store may have dropped such a state.
	fresh map[string]bool
}

// storedState is the check that wrote a counter or penalty, with its calendar at that time.
type storedState struct {
	check    corecounter.Check
	calendar *calendar
}

// waitSlack is the largest difference that is accepted in Wait, Reset and Next. These are computed,
// not stored.
const waitSlack corecounter.Micros = 1

func compare(e *examiner, tr *traffic, steps int) {
	p := &pair{examiner: e, traffic: tr, model: &Model{}, written: map[string][]storedState{}, fresh: map[string]bool{}}
	for step := range steps {
		checks := tr.next()
		if tr.calls%trafficLife == 1 { // the earlier counters are never used again
			clear(p.written)
			clear(p.fresh)
			p.model = &Model{}
		}
		e.at(tr.now)
		p.model.Pin(tr.now)
		p.forget(checks)
		before := p.slots(checks)
		want, got := make([]corecounter.Result, len(checks)), make([]corecounter.Result, len(checks))
		expected := p.model.Take(context.Background(), checks, want)
		if expected != nil && !errors.Is(expected, corecounter.ErrStale) {
			e.Fatalf("step %d: the model: %v", step, expected)
		}
		if err := e.Store.Take(context.Background(), checks, got); !sameError(err, expected) {
			e.Fatalf("step %d at %d:\n%s: the error is %v, want %v", step, tr.now, describe(checks), err, expected)
		}
		if expected != nil {
			continue
		}
		for i := range checks {
			if !sameAnswer(&want[i], &got[i]) {
				e.Fatalf("step %d at %d, check %d of\n%s: the answer (-model +store):\n%s", step, tr.now, i+1,
					describe(checks), cmp.Diff(want[i], got[i]))
			}
			p.hold(step, checks, i, &before[i])
		}
		tr.learn(checks, want)
	}
}

// sameError reports whether two errors mean the same for a caller.
func sameError(a, b error) bool {
	for _, what := range []error{corecounter.ErrStale, corecounter.ErrUnavailable, corecounter.ErrInvalid} {
		if errors.Is(a, what) != errors.Is(b, what) {
			return false
		}
	}
	return (a == nil) == (b == nil)
}

// pair.forget removes a state from the model if the store has dropped this state and was free to do
// so.
func (p *pair) forget(checks []corecounter.Check) {
	for key, all := range p.written {
		for i := range all {
			p.fresh[key] = p.fresh[key] || all[i].isFresh(p) || all[i].over(p)
		}
	}
	for i := range checks {
		c := &checks[i]
		key := string(c.Key)
		if !p.fresh[key] {
			continue
		}
		if isZero(p.holds(p, c)) {
			delete(p.model.counters, key)
			delete(p.fresh, key)
			delete(p.written, key)
			continue
		}
		// The state equals a new counter under the limit with which it was written, but not under
		// the edited limit. So the store may drop or keep the state in this call, and the model
		// cannot know which. Therefore the call still uses the former limit.
		all := p.written[key]
		if i := slices.IndexFunc(all, func(w storedState) bool { return w.isFresh(p) }); i >= 0 {
			c.Limit, c.Penalty = all[i].check.Limit, all[i].check.Penalty
			if all[i].calendar != nil {
				*c = all[i].calendar.dated(*c, p.now)
			}
		}
	}
}

// isFresh reports whether the stored state equals a new counter under the limit with which it was
// written.
func (w *storedState) isFresh(p *pair) bool {
	return isZero(keptSlot(w.check, p.modelHolds(&w.check), p.now))
}

// storedState.over reports whether the period of a calendar counter has ended. That period may be
// later than the periods in the check, if a clock was ahead when the counter was written.
func (w *storedState) over(p *pair) bool {
	if w.calendar == nil {
		return false
	}
	now := storedState{check: w.calendar.dated(w.check, p.now)}
	return now.isFresh(p)
}

// modelHolds returns the state that the model has for a check.
func (p *pair) modelHolds(c *corecounter.Check) corecounter.Slot {
	model := p.model.Subject()
	return model.holds(p, c)
}

// pair.slots returns the states that the model has for the checks.
func (p *pair) slots(checks []corecounter.Check) []corecounter.Slot {
	slots := make([]corecounter.Slot, len(checks))
	for i := range checks {
		slots[i] = p.modelHolds(&checks[i])
	}
	return slots
}

// pair.hold fails the test if the model and the store have different states for the check with the
// index i.
func (p *pair) hold(step int, checks []corecounter.Check, i int, before *corecounter.Slot) {
	c := &checks[i]
	after := p.modelHolds(c)
	want, got := keptSlot(*c, after, p.now), keptSlot(*c, p.holds(p, c), p.now)
	if !sameSlot(&want, &got) {
		p.Fatalf("step %d at %d, check %d of\n%s: the counter (-model +store):\n%s", step, p.now, i+1,
			describe(checks), cmp.Diff(want, got, slotsByContent))
	}
	key := string(c.Key)
	if !sameSlot(before, &after) {
		p.written[key], p.fresh[key] = nil, false
	}
	if p.model.wrote[key] {
		p.written[key] = append(p.written[key], storedState{*c, p.traffic.find(c.Key).calendar})
		p.fresh[key] = p.fresh[key] || isZero(want)
	}
}

// sameAnswer reports whether two answers are equal, except that computed spans may differ by
// waitSlack.
func sameAnswer(a, b *corecounter.Result) bool {
	x, y := *a, *b
	for _, spans := range [][2]*corecounter.Micros{{&x.Wait, &y.Wait}, {&x.Reset, &y.Reset}, {&x.Next, &y.Next}} {
		if d := *spans[0] - *spans[1]; d >= -waitSlack && d <= waitSlack && (*spans[0] == 0) == (*spans[1] == 0) {
			*spans[1] = *spans[0]
		}
	}
	return x == y
}

func describe(checks []corecounter.Check) string {
	var b strings.Builder
	for i := range checks {
		c := &checks[i]
		if c.Penalty != nil {
			fmt.Fprintf(&b, "  op %d %q %+v\n", c.Op, c.Key, *c.Penalty)
			continue
		}
		fmt.Fprintf(&b, "  op %d shadow %t %q (%s) cost %d", c.Op, c.Shadow, c.Key, c.Limit, c.Cost)
		if c.Op == corecounter.OpUpTo {
			fmt.Fprintf(&b, " min %d max %d share %d", c.Min, c.Max, c.ShareMille)
		}
		if c.Op == corecounter.OpRefund {
			fmt.Fprintf(&b, " receipt %d", c.Receipt)
		}
		if c.Age != 0 {
			fmt.Fprintf(&b, " age %d", c.Age)
		}
		if c.Refundable {
			b.WriteString(" refundable")
		}
		if c.Guard != 0 {
			fmt.Fprintf(&b, " for check %d as %d", c.Guard, c.Violation)
		}
		if c.Bounds != nil {
			fmt.Fprintf(&b, " bounds %d", *c.Bounds)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
