// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"testing"

	"github.com/penstock/penstock/core"
)

// punished returns the checks of a request under a penalty and limits whose refusals are violations.
func punished(p *core.Penalty, limits ...core.Check) []core.Check {
	checks := []core.Check{{Key: []byte("penalty"), Op: core.OpTake, Penalty: p}}
	for i := range limits {
		limits[i].Guard, limits[i].Violation = 1, int64(limits[i].Key[0])
	}
	return append(checks, limits...)
}

// standing returns how many violations the inner store remembers, and how long the penalty lasts.
func (p *rig) standing(penalty *core.Penalty) (int64, core.Micros) {
	p.Helper()
	r := make([]core.Result, 1)
	look := []core.Check{{Key: []byte("penalty"), Op: core.OpLook, Penalty: penalty}}
	if err := p.inner.of.Take(context.Background(), look, r); err != nil {
		p.Fatal(err)
	}
	return r[0].Violations, r[0].Wait
}

// told is what of a result every answer must say alike.
type told struct {
	refused bool
	wait    core.Micros
}

// TestViolationsAreWhatTheStoreWouldRecord sends the same requests through memory and to a store alone: each is decided
// alike and leaves the same record.
func TestViolationsAreWhatTheStoreWouldRecord(t *testing.T) {
	penalty := &core.Penalty{Window: core.Minute, Threshold: 4, Multipliers: []int64{2, 3}}
	limits := []core.Check{takeOf("a", limitOf(t, "2/700ms fixed_window"), 1), takeOf("b", limitOf(t, "2/3s sliding_window"), 1)}
	remembering, exact := open(t, Options{}), open(t, Options{DenialsMax: -1})
	penalized := 0
	for i := range 3_000 {
		at := core.Micros(i) * 13_007
		var got [2][2]told
		for j, p := range []*rig{remembering, exact} {
			p.after(at)
			for k, r := range p.ask(punished(penalty, limits[i/7%2])...) {
				got[j][k] = told{r.Refused, r.Wait}
			}
		}
		if got[0][0].refused && got[1][0].refused {
			penalized++
			got[0][1] = got[1][1] // the limit may have passed by now, or not be remembered
		}
		if got[0] != got[1] {
			t.Fatalf("at %v: %+v, the store alone says %+v", at, got[0], got[1])
		}
		n, wait := remembering.standing(penalty)
		if m, w := exact.standing(penalty); m != n || w != wait {
			t.Fatalf("at %v: %d violations and %v, want %d and %v", at, n, wait, m, w)
		}
	}
	asked, all := remembering.inner.calls.Load(), exact.inner.calls.Load()
	if asked > all/10 || penalized == 0 {
		t.Errorf("%d of %d calls were asked, %d refused by the penalty", asked, all, penalized)
	}
}

func TestAPenaltyInForceIsRemembered(t *testing.T) {
	penalty := &core.Penalty{Window: core.Hour, Threshold: 1, Multipliers: []int64{10}}
	p, l := open(t, Options{}), limitOf(t, "1/100ms fixed_window")
	free := limitOf(t, "9/1m")
	offend := func() []core.Result {
		p.Helper()
		return p.ask(punished(penalty, takeOf("a", l, 1))...)
	}
	offend()
	if r := offend(); !r[0].Refused || r[0].Wait != core.Second {
		t.Fatalf("a violation: %+v", r)
	}
	p.calls(2, "until it is imposed")
	for _, after := range []core.Micros{0, 99 * core.Millisecond, 100 * core.Millisecond, 999 * core.Millisecond} {
		p.after(after)
		r := p.ask(punished(penalty, takeOf("a", l, 1), takeOf("new", free, 1))...)
		p.calls(0, "while it is in force")
		if !r[0].Refused || r[0].Wait != core.Second-after || r[1].Refused != (after < 100*core.Millisecond) || r[2].Refused ||
			r[2].Remaining != 9 || r[2].At != noon+after {
			t.Errorf("after %v: %+v", after, r)
		}
	}
	p.after(core.Second)
	if r := offend(); r[0].Refused || r[1].Granted != 1 {
		t.Errorf("when it is over: %+v", r)
	}
	p.calls(1, "when it is over")
}

func TestALiftedPenaltyIsForgotten(t *testing.T) {
	penalty := &core.Penalty{Window: core.Hour, Threshold: 2, Multipliers: []int64{10}}
	p, a, b := open(t, Options{}), limitOf(t, "1/1m fixed_window"), limitOf(t, "1/1m sliding_window")
	lift := func() {
		reset := punished(penalty)[0]
		reset.Op = core.OpReset
		p.ask(reset)
	}
	p.exhaust("a", a)
	p.exhaust("b", b)
	p.ask(punished(penalty, takeOf("a", a, 1))...)
	two := punished(penalty, takeOf("b", b, 1))
	if r := p.ask(two...); !r[0].Refused {
		t.Fatalf("two violations: %+v", r)
	}
	lift()
	p.after(1)
	p.inner.calls.Store(0)
	if r := p.ask(two...); r[0].Refused || r[0].Violations != 1 || !r[1].Refused {
		t.Errorf("after it was lifted: %+v, want the first violation", r)
	}
	p.calls(1, "a refusal whose violation is forgotten")
	p.ask(two...)
	p.calls(0, "a refusal whose violation is recorded")
	lift()
	p.ask(two...)
	if n, _ := p.standing(penalty); n != 1 {
		t.Errorf("%d violations after it was lifted again, want 1", n)
	}
}

// TestARefusalThatIsNoViolationIsNoneThatIsOne: by which record, and under which number, is part of what is remembered.
func TestARefusalThatIsNoViolationIsNoneThatIsOne(t *testing.T) {
	penalty := &core.Penalty{Window: core.Hour, Threshold: 9, Multipliers: []int64{1}}
	p, l := open(t, Options{}), limitOf(t, "1/1m fixed_window")
	p.exhaust("a", l)
	p.ask(takeOf("a", l, 1)) // a policy without penalties
	p.ask(punished(penalty, takeOf("a", l, 1))...)
	other := punished(penalty, takeOf("a", l, 1))
	other[1].Violation = 2
	p.ask(other...)
	p.calls(3, "three ways to count it")
	p.ask(takeOf("a", l, 1))
	p.ask(other...)
	p.calls(0, "the last way, and none")
	if n, _ := p.standing(penalty); n != 2 {
		t.Errorf("%d violations, want 2", n)
	}

	// What is refused while a penalty is in force is recorded when it is over.
	p.after(2 * core.Minute)
	short := &core.Penalty{Window: core.Hour, Threshold: 3, Multipliers: []int64{1}, Max: 100 * core.Millisecond}
	p.ask(punished(short, takeOf("b", l, 1))...)
	p.ask(punished(short, takeOf("b", l, 1))...)
	p.ask(takeOf("c", l, 1))
	c := punished(short, takeOf("c", l, 1))
	for range 3 {
		if r := p.ask(c...); !r[0].Refused {
			t.Errorf("%+v, want a penalty", r)
		}
	}
	p.after(2*core.Minute + 100*core.Millisecond)
	if r := p.ask(c...); r[0].Violations != 4 {
		t.Errorf("when the penalty is over: %+v, want a fourth violation", r)
	}
}
