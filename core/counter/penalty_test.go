// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// offender is a client with a penalty and two limits whose denials are violations.
type offender struct {
	testing.TB
	penalty Penalty
	limits  [2]Limit
	slots   [3]Slot // the first is the penalty's
	results [3]Result
	now     Micros
}

// newOffender returns an offender with limits of one unit a minute and two an hour, and penalties
// from the second violation on.
func newOffender(t testing.TB) *offender {
	return &offender{TB: t, now: noon, limits: [2]Limit{mustParse(t, "1/1m fw"), mustParse(t, "2/1h fw")},
		penalty: Penalty{Window: Hour, Threshold: 2, Multipliers: []int64{1, 2, 4}}}
}

// offender.checks returns the checks of one request.
func (o *offender) checks() []Check {
	return []Check{{Penalty: &o.penalty}, {Limit: &o.limits[0], Cost: 1, Guard: 1, Violation: 11},
		{Limit: &o.limits[1], Cost: 1, Guard: 1, Violation: 12}}
}

// offender.ask advances the clock by the given time, and sends a request whose checks the given
// functions have modified. It returns the result for the penalty.
func (o *offender) ask(later Micros, change ...func(c []Check)) Result {
	o.now += later
	c := o.checks()
	for _, f := range change {
		f(c)
	}
	Decide(o.now, c, o.slots[:], o.results[:])
	return o.results[0]
}

// wantRemembered fails the test unless exactly the given violations are recorded.
func (o *offender) wantRemembered(want ...Violation) {
	o.Helper()
	if diff := cmp.Diff(want, o.slots[0].Violations, cmpopts.EquateEmpty()); diff != "" {
		o.Errorf("violations (-want +got):\n%s", diff)
	}
}

// wantResult fails the test unless the result reports this wait and number of violations.
func (o *offender) wantResult(r Result, wait Micros, violations int64) {
	o.Helper()
	if want := (Result{At: o.now, Denied: wait > 0, Wait: wait, Violations: violations}); r != want {
		o.Errorf("at %s: %+v, want %+v", o.now-noon, r, want)
	}
}

func TestTwentyRequestsAreOneViolation(t *testing.T) {
	o := newOffender(t)
	o.wantResult(o.ask(0), 0, 0)
	for range 20 {
		o.wantResult(o.ask(1), 0, 1)
	}
	first := Violation{At: noon + 1, Until: noon + Minute, ID: 11}
	o.wantRemembered(first)
	o.now = noon + Minute // the wait is over
	o.slots[1].State, o.slots[2].State = State{At: o.now, Used: 1}, State{}
	o.wantResult(o.ask(Second), 59*Second, 2)
	o.wantRemembered(first, Violation{At: noon + Minute + Second, Until: noon + 2*Minute, ID: 11})
}

func TestEveryDenyingLimitIsAViolation(t *testing.T) {
	o := newOffender(t)
	o.limits[1] = mustParse(t, "1/1h fw")
	o.ask(0)
	o.wantResult(o.ask(0), Hour, 2) // the penalty follows the longest of the waits
	o.wantRemembered(Violation{noon, noon + Minute, 11}, Violation{noon, noon + Hour, 12})
}

func TestWhatIsNoViolation(t *testing.T) {
	for name, change := range map[string]func(c []Check){
		"no guard":                func(c []Check) { c[1].Guard, c[2].Guard = 0, 0 },
		"another's guard":         func(c []Check) { c[1].Guard, c[2].Guard = 3, 3 },
		"log_only":                func(c []Check) { c[1].Shadow, c[2].Shadow = true, true },
		"a look":                  func(c []Check) { c[1].Op, c[2].Op = OpLook, OpLook },
		"a cost that cannot pass": func(c []Check) { c[1].Cost, c[2].Cost = 3, 3 },
		"the penalty is shown":    func(c []Check) { c[0].Op = OpLook },
	} {
		o := newOffender(t)
		o.penalty.Threshold = 1
		o.ask(0)
		if r := o.ask(0, change); r.Denied || len(o.slots[0].Violations) > 0 || o.slots[0].Write {
			t.Errorf("%s: %+v, %+v", name, r, o.slots[0].Violations)
		}
	}
	o := newOffender(t)
	o.ask(0)
	o.slots[1].Shared = true
	if r := o.ask(0); r.Violations != 0 || !o.results[1].Denied {
		t.Errorf("a shared counter: %+v", r)
	}
}

func TestUpToIsAViolation(t *testing.T) {
	o := newOffender(t)
	o.ask(0)
	r := o.ask(0, func(c []Check) { c[1].Op, c[1].Min, c[1].Max = OpUpTo, 1, 5 })
	o.wantResult(r, 0, 1)
}

// TestPenaltyGrows: each violation beyond the threshold uses the next multiplier, and the last one
// repeats.
func TestPenaltyGrows(t *testing.T) {
	o := newOffender(t)
	o.ask(0)
	wants := []Micros{0, 30 * Second, 60 * Second, 120 * Second, 120 * Second}
	for i, want := range wants {
		o.now = noon + Micros(i+1)*5*Minute + 30*Second
		o.slots[1].State, o.slots[2].State = State{At: o.now - 30*Second, Used: 1}, State{}
		o.wantResult(o.ask(0), want, int64(i+1))
		if !o.slots[0].Write {
			t.Error("a violation is not written")
		}
	}
	o.penalty.Max = 45 * Second
	o.now = noon + 30*Minute + 15*Second
	o.slots[1].State, o.slots[2].State = State{At: noon + 30*Minute, Used: 1}, State{}
	o.wantResult(o.ask(0), 45*Second, 6) // four times 45 seconds would exceed the maximum, so the maximum applies
}

func TestPenaltyInForce(t *testing.T) {
	o := newOffender(t)
	o.penalty.Threshold = 1
	o.ask(0)
	o.wantResult(o.ask(0), Minute, 1)
	written := o.slots[0]
	// Denials by the penalty are not violations and do not extend it, and nothing is charged while
	// it lasts.
	o.slots[1].State, o.slots[2].State = State{}, State{}
	o.wantResult(o.ask(30*Second), 30*Second, 1)
	if o.results[1].Granted+o.results[2].Granted != 0 || o.results[1].Denied || o.slots[0].Write {
		t.Errorf("a request during the penalty: %+v, %+v", o.results, o.slots[0])
	}
	o.slots[2].State = State{At: noon, Used: 2}
	o.wantResult(o.ask(Second), 29*Second, 1)
	if diff := cmp.Diff(written.Violations, o.slots[0].Violations); diff != "" || o.slots[0].State != written.State {
		t.Errorf("a denial during the penalty is remembered: %s", diff)
	}
	o.slots[2].State = State{}
	o.wantResult(o.ask(29*Second-1), 1, 1)
	// the penalty is over, and an admitted request does not read the violations
	o.wantResult(o.ask(1), 0, 0)
	if o.results[1].Granted != 1 {
		t.Errorf("after the penalty: %+v", o.results[1])
	}
}

// TestAnotherPenaltyInForce: a request that one client's penalty denies is not a violation for
// another penalty.
func TestAnotherPenaltyInForce(t *testing.T) {
	o := newOffender(t)
	o.penalty.Threshold = 1
	l := mustParse(t, "1/1m fw")
	checks := []Check{{Penalty: &o.penalty}, {Penalty: &o.penalty}, {Limit: &l, Cost: 1, Guard: 1, Violation: 5}}
	slots := []Slot{{}, {State: State{At: noon + Minute}}, {State: State{At: noon, Used: 1}}}
	results := make([]Result, 3)
	Decide(noon, checks, slots, results)
	if results[0].Denied || !results[1].Denied || len(slots[0].Violations) != 0 {
		t.Errorf("%+v", results)
	}
	checks[1].Op = OpLook // OpLook only reports and denies nothing
	Decide(noon, checks, slots, results)
	if !results[0].Denied || !results[1].Denied || results[0].Wait != Minute || len(slots[0].Violations) != 1 {
		t.Errorf("%+v", results)
	}
}

func TestViolationsDecay(t *testing.T) {
	o := newOffender(t)
	o.ask(0)
	o.wantResult(o.ask(0), 0, 1)
	look := func(c []Check) { c[0].Op, c[1].Op, c[2].Op = OpLook, OpLook, OpLook }
	o.wantResult(o.ask(Hour-1, look), 0, 1)
	o.wantResult(o.ask(1, look), 0, 0)
	if fresh := o.penalty.Fresh(&Slot{Violations: []Violation{{At: noon}}}); fresh != noon+Hour {
		t.Errorf("fresh from %d", fresh)
	}
	if fresh := o.penalty.Fresh(&Slot{State: State{At: noon + 2*Hour}, Violations: []Violation{{At: noon}}}); fresh != noon+2*Hour {
		t.Errorf("fresh from %d", fresh)
	}
}

func TestViolationsAreBounded(t *testing.T) {
	o := newOffender(t)
	o.penalty = Penalty{Window: Hour, Threshold: ViolationsMax, Multipliers: []int64{1}}
	for i := range ViolationsMax {
		o.slots[0].Violations = append(o.slots[0].Violations, Violation{noon + Micros(i), noon + Micros(i) + 1, 11})
	}
	o.now = noon + Minute
	o.slots[1].State = State{At: o.now, Used: 1}
	o.wantResult(o.ask(0), Minute, ViolationsMax)
	if n := len(o.slots[0].Violations); n != ViolationsMax || o.slots[0].Violations[0].At != noon+1 {
		t.Errorf("%d violations, the oldest of %d", n, o.slots[0].Violations[0].At-noon)
	}
}

// TestPenaltyAndAClockThatGoesBack: a small step back of the clock has no effect. A penalty that
// would last longer than the maximum after a large step is shortened.
func TestPenaltyAndAClockThatGoesBack(t *testing.T) {
	look := func(c []Check) { c[0].Op, c[1].Op, c[2].Op = OpLook, OpLook, OpLook }
	ahead := Violation{noon + Hour, noon + Hour + Minute, 11}
	o := newOffender(t)
	o.slots[0].Violations = []Violation{ahead}
	o.wantResult(o.ask(0, look), 0, 1)
	o.wantRemembered(ahead)
	o.slots[0].Violations = []Violation{{noon - 1, noon + 7, 3}, {noon + 1, noon + 6, 2}, {noon + 2, noon + 3, 1}, {noon + Hour + 1, noon + Hour + 2, 1}}
	o.wantResult(o.ask(0, look), 0, 3)
	o.wantRemembered(Violation{noon - 1, noon + 7, 3}, Violation{noon, noon + 1, 1}, Violation{noon, noon + 5, 2})
	if !o.slots[0].Write {
		t.Error("what was brought to now is not written")
	}
	for until, want := range map[Micros]Micros{noon + Hour: Hour, noon + Hour + 1: Hour, noon + Day: Hour, noon - 1: 0} {
		o := newOffender(t)
		o.slots[0].State.At = until
		o.wantResult(o.ask(0), want, 0)
		if o.slots[0].Write != (until > noon+Hour) {
			t.Errorf("until %s: written %t", until-noon, o.slots[0].Write)
		}
	}
}

func TestPenaltyReset(t *testing.T) {
	o := newOffender(t)
	o.penalty.Threshold = 1
	o.ask(0)
	o.wantResult(o.ask(0), Minute, 1)
	lift := func(c []Check) { c[0].Op, c[1].Op, c[2].Op = OpReset, OpLook, OpLook }
	if r := o.ask(Second, lift); r != (Result{At: o.now, Granted: 1}) {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(Slot{Write: true}, o.slots[0], cmp.AllowUnexported(Slot{})); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
	o.slots[1].State = State{}
	o.wantResult(o.ask(0), 0, 0)
}

// TestAdmittedRequestsDoNotLookAtViolations: for an admitted request, Decide neither reads nor
// changes the violations.
func TestAdmittedRequestsDoNotLookAtViolations(t *testing.T) {
	o := newOffender(t)
	old := []Violation{{noon - 2*Hour, noon - Hour, 11}, {noon + 2*Day, noon + 2*Day, 12}}
	o.slots[0].Violations = slices.Clone(old)
	o.wantResult(o.ask(0), 0, 0)
	o.wantRemembered(old...)
	if o.slots[0].Write {
		t.Error("an admitted request writes the penalty")
	}
}

func TestPenaltyDoesNotAllocate(t *testing.T) {
	o := newOffender(t)
	o.ask(0)
	o.ask(0)
	checks := o.checks()
	if n := testing.AllocsPerRun(100, func() { Decide(o.now, checks, o.slots[:], o.results[:]) }); n != 0 || !o.results[1].Denied {
		t.Errorf("a denial again: %v allocations", n)
	}
	o.now += 2 * Hour
	if n := testing.AllocsPerRun(100, func() {
		o.now += Hour
		Decide(o.now, checks, o.slots[:], o.results[:])
	}); n != 0 || o.results[1].Granted != 1 {
		t.Errorf("admitted: %v allocations", n)
	}
}
