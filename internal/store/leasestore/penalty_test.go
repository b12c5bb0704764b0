// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// punishedChecks returns the checks of a request under a penalty, and under limits whose denials
// are violations.
func punishedChecks(p *counter.Penalty, limits ...counter.Check) []counter.Check {
	checks := []counter.Check{{Key: []byte("penalty"), Op: counter.OpTake, Penalty: p}}
	for i := range limits {
		limits[i].Guard, limits[i].Violation = 1, int64(limits[i].Key[0])
	}
	return append(checks, limits...)
}

// rig.readViolations returns the number of violations that the inner store remembers, and the
// duration of the penalty.
func (p *rig) readViolations(penalty *counter.Penalty) (int64, counter.Micros) {
	p.Helper()
	r := make([]counter.Result, 1)
	look := []counter.Check{{Key: []byte("penalty"), Op: counter.OpLook, Penalty: penalty}}
	if err := p.inner.of.Take(context.Background(), look, r); err != nil {
		p.Fatal(err)
	}
	return r[0].Violations, r[0].Wait
}

// sharedResult holds the parts of a result that must not depend on whether denials are remembered.
type sharedResult struct {
	refused bool
	wait    counter.Micros
}

// TestViolationsMatchTheStore sends the same requests to a leasestore and directly to a store. The
// leasestore and the store must decide each request in the same way and leave the same record.
func TestViolationsMatchTheStore(t *testing.T) {
	penalty := &counter.Penalty{Window: counter.Minute, Threshold: 4, Multipliers: []int64{2, 3}}
	limits := []counter.Check{takeOf("a", limittest.New(t, "2/700ms fixed_window"), 1), takeOf("b", limittest.New(t, "2/3s sliding_window"), 1)}
	remembering, exact := open(t, Options{}), open(t, Options{DenialsMax: -1})
	penalized := 0
	for i := range 3_000 {
		at := counter.Micros(i) * 13_007
		var got [2][2]sharedResult
		for j, p := range []*rig{remembering, exact} {
			p.setClocks(at)
			for k, r := range p.ask(punishedChecks(penalty, limits[i/7%2])...) {
				got[j][k] = sharedResult{r.Denied, r.Wait}
			}
		}
		if got[0][0].refused && got[1][0].refused {
			penalized++
			got[0][1] = got[1][1] // the limit might admit the request by now, or its denial might not be remembered
		}
		if got[0] != got[1] {
			t.Fatalf("at %v: %+v, the store alone says %+v", at, got[0], got[1])
		}
		n, wait := remembering.readViolations(penalty)
		if m, w := exact.readViolations(penalty); m != n || w != wait {
			t.Fatalf("at %v: %d violations and %v, want %d and %v", at, n, wait, m, w)
		}
	}
	asked, all := remembering.inner.calls.Load(), exact.inner.calls.Load()
	if asked > all/10 || penalized == 0 {
		t.Errorf("%d of %d calls were asked, %d refused by the penalty", asked, all, penalized)
	}
}

func TestAPenaltyInForceIsRemembered(t *testing.T) {
	penalty := &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{10}}
	p, l := open(t, Options{}), limittest.New(t, "1/100ms fixed_window")
	free := limittest.New(t, "9/1m")
	offend := func() []counter.Result {
		p.Helper()
		return p.ask(punishedChecks(penalty, takeOf("a", l, 1))...)
	}
	offend()
	if r := offend(); !r[0].Denied || r[0].Wait != counter.Second {
		t.Fatalf("a violation: %+v", r)
	}
	p.calls(2, "until it is imposed")
	for _, after := range []counter.Micros{0, 99 * counter.Millisecond, 100 * counter.Millisecond, 999 * counter.Millisecond} {
		p.setClocks(after)
		r := p.ask(punishedChecks(penalty, takeOf("a", l, 1), takeOf("new", free, 1))...)
		p.calls(0, "while it is in force")
		if !r[0].Denied || r[0].Wait != counter.Second-after || r[1].Denied != (after < 100*counter.Millisecond) || r[2].Denied ||
			r[2].Remaining != 9 || r[2].At != noon+after {
			t.Errorf("after %v: %+v", after, r)
		}
	}
	p.setClocks(counter.Second)
	if r := offend(); r[0].Denied || r[1].Granted != 1 {
		t.Errorf("when it is over: %+v", r)
	}
	p.calls(1, "when it is over")
}

func TestALiftedPenaltyIsForgotten(t *testing.T) {
	penalty := &counter.Penalty{Window: counter.Hour, Threshold: 2, Multipliers: []int64{10}}
	p, a, b := open(t, Options{}), limittest.New(t, "1/1m fixed_window"), limittest.New(t, "1/1m sliding_window")
	lift := func() {
		reset := punishedChecks(penalty)[0]
		reset.Op = counter.OpReset
		p.ask(reset)
	}
	p.exhaust("a", a)
	p.exhaust("b", b)
	p.ask(punishedChecks(penalty, takeOf("a", a, 1))...)
	two := punishedChecks(penalty, takeOf("b", b, 1))
	if r := p.ask(two...); !r[0].Denied {
		t.Fatalf("two violations: %+v", r)
	}
	lift()
	p.setClocks(1)
	p.inner.calls.Store(0)
	if r := p.ask(two...); r[0].Denied || r[0].Violations != 1 || !r[1].Denied {
		t.Errorf("after it was lifted: %+v, want the first violation", r)
	}
	p.calls(1, "a denial whose violation is forgotten")
	p.ask(two...)
	p.calls(0, "a denial whose violation is recorded")
	lift()
	p.ask(two...)
	if n, _ := p.readViolations(penalty); n != 1 {
		t.Errorf("%d violations after it was lifted again, want 1", n)
	}
}

// TestADenialKeepsItsViolation: a denial is remembered together with the penalty record and the
// violation number of its call.
func TestADenialKeepsItsViolation(t *testing.T) {
	penalty := &counter.Penalty{Window: counter.Hour, Threshold: 9, Multipliers: []int64{1}}
	p, l := open(t, Options{}), limittest.New(t, "1/1m fixed_window")
	p.exhaust("a", l)
	p.ask(takeOf("a", l, 1)) // as under a policy without penalties
	p.ask(punishedChecks(penalty, takeOf("a", l, 1))...)
	other := punishedChecks(penalty, takeOf("a", l, 1))
	other[1].Violation = 2
	p.ask(other...)
	p.calls(3, "three ways to count it")
	p.ask(takeOf("a", l, 1))
	p.ask(other...)
	p.calls(0, "the last way, and none")
	if n, _ := p.readViolations(penalty); n != 2 {
		t.Errorf("%d violations, want 2", n)
	}

	// A denial during a penalty is recorded when the penalty has ended.
	p.setClocks(2 * counter.Minute)
	short := &counter.Penalty{Window: counter.Hour, Threshold: 3, Multipliers: []int64{1}, Max: 100 * counter.Millisecond}
	p.ask(punishedChecks(short, takeOf("b", l, 1))...)
	p.ask(punishedChecks(short, takeOf("b", l, 1))...)
	p.ask(takeOf("c", l, 1))
	c := punishedChecks(short, takeOf("c", l, 1))
	for range 3 {
		if r := p.ask(c...); !r[0].Denied {
			t.Errorf("%+v, want a penalty", r)
		}
	}
	p.setClocks(2*counter.Minute + 100*counter.Millisecond)
	if r := p.ask(c...); r[0].Violations != 4 {
		t.Errorf("when the penalty is over: %+v, want a fourth violation", r)
	}
}
