// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"

	corecounter "github.com/penstock/penstock/core/counter"
)

// warden tests a penalty. It sends requests under a limit of one unit per minute, whose denials are
// violations.
type warden struct {
	*examiner
	penalty corecounter.Penalty
	limit   corecounter.Limit
}

// warden.guard sends a call with two checks: one of the penalty, and one of the limit, whose denial
// is a violation with the given ID.
func (w *warden) guard(violation int64) (penalty, counter corecounter.Result) {
	w.Helper()
	key := fmt.Sprint("limit ", violation)
	r := w.take(penaltyCheck(corecounter.OpTake, "p", &w.penalty), withGuard(take(key, w.limit, 1), 1, violation))
	return r[0], r[1]
}

// warden.offend exhausts the limit, so that a request is denied and violates it. It returns the
// answer to the check of the penalty.
func (w *warden) offend(violation int64) corecounter.Result {
	w.Helper()
	w.take(force(fmt.Sprint("limit ", violation), w.limit, 1))
	penalty, counter := w.guard(violation)
	if !counter.Denied {
		w.Fatalf("limit %d: %+v, want it denied", violation, counter)
	}
	return penalty
}

// warden.imposed fails the test unless the answer r reports a penalty with the given wait and
// number of violations. A wait of 0 means that no penalty is in force.
func (w *warden) imposed(r corecounter.Result, wait corecounter.Micros, violations int64) {
	w.Helper()
	if r.Denied != (wait > 0) || r.Wait != wait || r.Violations != violations || r.Granted != 0 {
		w.Fatalf("at %s the penalty: %+v, want a wait of %s after %d violations", clockTime(w.now), r, wait, violations)
	}
}

// warden.current looks at the penalty and returns the answer.
func (w *warden) current() corecounter.Result {
	w.Helper()
	return w.takeOne(penaltyCheck(corecounter.OpLook, "p", &w.penalty))
}

func newWarden(e *examiner, p corecounter.Penalty) *warden {
	return &warden{e, p, limit(corecounter.FixedWindow, 1, corecounter.Minute)}
}

func askPenaltySteps(e *examiner) {
	for _, threshold := range []int64{1, 2, 5} {
		w := newWarden(e, corecounter.Penalty{Window: 10 * corecounter.Hour, Threshold: threshold, Multipliers: []int64{1, 3, 2, 5}, Max: 4 * corecounter.Minute})
		e.take(penaltyCheck(corecounter.OpReset, "p", &w.penalty))
		e.setClock(0)
		for n := int64(1); n < threshold; n++ {
			w.imposed(w.offend(1), 0, n)
			e.at(e.now + corecounter.Minute)
		}
		for i, minutes := range []corecounter.Micros{1, 3, 2, 4, 4, 4} { // 5 minutes are cut to 4
			wait := minutes * corecounter.Minute
			w.imposed(w.offend(1), wait, threshold+int64(i))
			e.at(e.now + wait)
			w.imposed(w.current(), 0, threshold+int64(i))
		}
	}
	// If the penalty has no maximum, its window is the maximum.
	w := newWarden(e, corecounter.Penalty{Window: 150 * corecounter.Second, Threshold: 1, Multipliers: []int64{1_000_000}})
	e.take(penaltyCheck(corecounter.OpReset, "p", &w.penalty))
	w.imposed(w.offend(2), 150*corecounter.Second, 1)
}

func askPenaltyLasts(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: 1, Multipliers: []int64{4, 64}})
	other := limit(corecounter.TokenBucket, 10, corecounter.Minute)
	w.imposed(w.offend(1), 4*corecounter.Minute, 1)
	for _, after := range []corecounter.Micros{0, 1, corecounter.Minute, 2*corecounter.Minute + 7, 4*corecounter.Minute - 1} {
		e.setClock(after)
		r, _ := w.guard(1)
		w.imposed(r, 4*corecounter.Minute-after, 1)
		// While a penalty is in force, other limits of the call neither deny nor are charged. A
		// forced charge is recorded nevertheless.
		all := e.take(take("other", other, 10), penaltyCheck(corecounter.OpTake, "p", &w.penalty), force("forced", other, 1))
		w.imposed(all[1], 4*corecounter.Minute-after, 1)
		if all[0].Denied || all[0].Granted != 0 || all[2].Granted != 1 {
			e.Fatalf("beside a penalty in force: %+v, want nothing charged and 1 recorded", all)
		}
		w.imposed(w.current(), 4*corecounter.Minute-after, 1)
		if r := e.take(penaltyCheck(corecounter.OpLook, "p", &w.penalty), take("looked", other, 1)); r[1].Granted != 1 {
			e.Fatalf("beside a look at a penalty in force: %+v, want 1 granted", r)
		}
		e.take(reset("looked", other))
	}
	e.setClock(4 * corecounter.Minute)
	w.imposed(w.current(), 0, 1)
	if r, counter := w.guard(1); r.Denied || counter.Granted != 1 {
		e.Fatalf("when the penalty is over: %+v and %+v, want 1 granted", r, counter)
	}
	e.left("other", other, 10)
}

func askOneViolation(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: 100, Multipliers: []int64{1}})
	e.setClock(20 * corecounter.Second)
	for range 20 {
		w.imposed(w.offend(1), 0, 1)
	}
	e.setClock(corecounter.Minute - 1)
	w.imposed(w.offend(1), 0, 1)
	e.setClock(corecounter.Minute)
	w.imposed(w.offend(1), 0, 2)
	w.imposed(w.offend(2), 0, 3) // another limit means another violation
	// One call can add several violations.
	var checks []corecounter.Check
	for v := range int64(5) {
		checks = append(checks, withGuard(take(fmt.Sprint("limit ", 1+v), w.limit, 1), 6, 1+v))
		e.take(force(fmt.Sprint("limit ", 1+v), w.limit, 1))
	}
	checks = append(checks, penaltyCheck(corecounter.OpTake, "p", &w.penalty))
	w.imposed(e.take(checks...)[5], 0, 6)
	w.imposed(e.take(checks...)[5], 0, 6)
}

func askLongestWait(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: 40 * corecounter.Hour, Threshold: 3, Multipliers: []int64{2}})
	long := limit(corecounter.FixedWindow, 1, corecounter.Hour)
	all := func() []corecounter.Result {
		return e.take(penaltyCheck(corecounter.OpTake, "p", &w.penalty), withGuard(take("limit 1", w.limit, 1), 1, 1),
			withGuard(take("long", long, 1), 1, 2))
	}
	all()
	w.imposed(all()[0], 0, 2)
	e.setClock(10 * corecounter.Minute)
	w.take(force("limit 1", w.limit, 1))
	// the denial with the long wait is already recorded, but its 50 minutes count
	w.imposed(all()[0], 100*corecounter.Minute, 3)
}

func askNoViolation(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: 1, Multipliers: []int64{1}})
	full, free := limit(corecounter.SlidingLog, 1, corecounter.Minute), limit(corecounter.FixedWindow, 9, corecounter.Minute)
	e.mustAdmit(take("full", full, 1))
	e.mustAdmit(take("refusing", full, 1))
	refusing := take("refusing", full, 1) // denies the call without being a violation
	for what, k := range map[string]corecounter.Check{
		"a limit without a guard":     take("full", full, 1),
		"a limit that passes":         withGuard(take("free", free, 1), 1, 1),
		"a limit that is only tried":  withGuard(shadow(take("full", full, 1)), 1, 1),
		"a look":                      withGuard(look("full", full, 1), 1, 1),
		"a settlement":                withGuard(force("forced", full, 1), 1, 1),
		"a give back":                 withGuard(refund("full", full, 1, 7), 1, 1),
		"a reset":                     withGuard(reset("reset", full), 1, 1),
		"a cost of nothing":           withGuard(take("full", full, 0), 1, 1),
		"a cost that can never pass":  withGuard(take("full", full, 2), 1, 1),
		"a batch that can never pass": withGuard(upTo("full", full, 2, 2, 2, 0), 1, 1),
	} {
		r := e.take(penaltyCheck(corecounter.OpTake, "p", &w.penalty), k, refusing)
		if r[0].Denied || r[0].Wait != 0 || r[0].Violations != 0 {
			e.Fatalf("%s: %+v, want no violation", what, r)
		}
		w.imposed(w.current(), 0, 0)
	}
	// A denial may be recorded as a violation of another client.
	other := corecounter.Penalty{Window: corecounter.Hour, Threshold: 50, Multipliers: []int64{1}}
	r := e.take(penaltyCheck(corecounter.OpTake, "p", &w.penalty), penaltyCheck(corecounter.OpTake, "other", &other), withGuard(refusing, 2, 1))
	if r[0].Denied || r[0].Violations != 0 || r[1].Violations != 1 {
		e.Fatalf("a denial in another client's record: %+v, want a violation only there", r)
	}
	// A denial is not a violation if the check of the penalty is a look, or while another penalty
	// is in force.
	k := withGuard(take("full", full, 1), 1, 1)
	e.take(penaltyCheck(corecounter.OpLook, "p", &w.penalty), k)
	w.imposed(w.current(), 0, 0)
	q := w.penalty
	e.take(penaltyCheck(corecounter.OpTake, "q", &q), k)
	e.take(penaltyCheck(corecounter.OpTake, "p", &w.penalty), k, penaltyCheck(corecounter.OpTake, "q", &q))
	w.imposed(w.current(), 0, 0)
	// A denied up-to-n check is a violation.
	r = e.take(penaltyCheck(corecounter.OpTake, "p", &w.penalty), withGuard(upTo("full", full, 1, 1, 1, 0), 1, 1))
	w.imposed(r[0], corecounter.Minute, 1)
}

func askDecay(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: 10 * corecounter.Minute, Threshold: 100, Multipliers: []int64{1}})
	for i := range int64(5) {
		e.setClock(corecounter.Micros(i) * corecounter.Minute)
		w.imposed(w.offend(1), 0, i+1)
	}
	for i := range int64(5) {
		e.setClock(corecounter.Micros(10+i)*corecounter.Minute - 1)
		w.imposed(w.current(), 0, 5-i)
		e.setClock(corecounter.Micros(10+i) * corecounter.Minute)
		w.imposed(w.current(), 0, 4-i)
	}
	w.imposed(w.offend(1), 0, 1)
	// under a longer window, violations that were not dropped yet count again
	w.penalty.Window = corecounter.Hour
	e.at(e.now + corecounter.Minute)
	if n := w.offend(1).Violations; n < 2 || n > 7 {
		e.Fatalf("%d violations, want 2 to 7", n)
	}
}

func askViolationsMax(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: corecounter.ViolationsMax, Multipliers: []int64{1, 9}})
	w.limit = limit(corecounter.FixedWindow, 2, corecounter.Minute)
	const each = corecounter.ChecksMax - 1
	var forced []corecounter.Check
	checks := []corecounter.Check{penaltyCheck(corecounter.OpTake, "p", &w.penalty)}
	for v := range int64(each) {
		key := fmt.Sprint("limit ", v)
		forced = append(forced, force(key, w.limit, 1))
		checks = append(checks, withGuard(take(key, w.limit, 2), 1, 1+v))
	}
	for i := int64(0); i*each < corecounter.ViolationsMax+2*each; i++ {
		e.setClock(corecounter.Micros(i) * corecounter.Minute)
		e.take(forced...)
		r := e.take(checks...)[0]
		n := min(corecounter.ViolationsMax, (i+1)*each)
		wait := corecounter.Micros(0)
		if n == corecounter.ViolationsMax {
			wait = corecounter.Minute
		}
		w.imposed(r, wait, n)
		if _, violations := e.Penalty(e, []byte("p")); int64(len(violations)) != n {
			e.Fatalf("%d violations are kept, want %d", len(violations), n)
		}
	}
	// Of violations at the same instant, those with the lowest IDs are dropped first, so that every
	// store keeps the same violations.
	_, violations := e.Penalty(e, []byte("p"))
	sortViolations(violations)
	last := int64(corecounter.ViolationsMax-1)/each + 2
	for i, v := range violations {
		position := (last+1)*each - corecounter.ViolationsMax + int64(i)
		at := start + corecounter.Micros(position/each)*corecounter.Minute
		if want := (corecounter.Violation{At: at, Until: at + corecounter.Minute, ID: 1 + position%each}); v != want {
			e.Fatalf("violation %d is %+v, want %+v", i, v, want)
		}
	}
}

func askLift(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: 2, Multipliers: []int64{5}})
	lift := func() corecounter.Result { return e.takeOne(penaltyCheck(corecounter.OpReset, "p", &w.penalty)) }
	w.imposed(w.offend(1), 0, 1)
	w.imposed(w.offend(2), 5*corecounter.Minute, 2)
	if r := lift(); r.Denied || r.Wait != 0 || r.Violations != 0 || r.Granted != 2 {
		e.Fatalf("lifting a penalty after 2 violations: %+v, want 2 granted and no wait", r)
	}
	w.imposed(w.current(), 0, 0)
	if until, violations := e.Penalty(e, []byte("p")); until != 0 || len(violations) != 0 {
		e.Fatalf("of a lifted penalty there is kept %d and %v, want nothing", until, violations)
	}
	w.imposed(w.offend(1), 0, 1)
	e.equal("what is lifted", lift().Granted, 1)
	e.equal("what is lifted of nothing", lift().Granted, 0)
	// The reset takes effect although the call is denied. The denials of this call are not
	// recorded.
	w.imposed(w.offend(1), 0, 1)
	r := e.take(penaltyCheck(corecounter.OpReset, "p", &w.penalty), withGuard(take("limit 1", w.limit, 1), 1, 1))
	if !r[1].Denied || r[0].Granted != 1 {
		e.Fatalf("lifting in a denied call: %+v, want it lifted", r)
	}
	w.imposed(w.current(), 0, 0)
}

func askPenaltyClockBack(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: 2, Multipliers: []int64{5, 10}, Max: 20 * corecounter.Minute})
	e.setClock(30 * corecounter.Minute)
	w.imposed(w.offend(1), 0, 1)
	e.setClock(30*corecounter.Minute - corecounter.Second)
	w.imposed(w.offend(1), 0, 1) // the same violation
	e.setClock(31 * corecounter.Minute)
	w.imposed(w.offend(2), 5*corecounter.Minute, 2)
	e.setClock(30 * corecounter.Minute) // the penalty is a little ahead of the clock, and stays in force
	w.imposed(w.current(), 6*corecounter.Minute, 2)
	// If the end of a penalty is ahead of the clock by more than the longest penalty, the penalty
	// is shortened to the longest penalty, and its violations are moved to the present.
	e.setClock(-3 * corecounter.Hour)
	w.imposed(w.current(), 20*corecounter.Minute, 2)
	r, _ := w.guard(1)
	w.imposed(r, 20*corecounter.Minute, 2)
	e.setClock(-3*corecounter.Hour + 20*corecounter.Minute)
	e.take(reset("limit 1", w.limit))
	if r, counter := w.guard(1); r.Denied || counter.Granted != 1 {
		e.Fatalf("after the longest penalty there is: %+v and %+v, want 1 granted", r, counter)
	}
	e.setClock(-2*corecounter.Hour - 1)
	w.imposed(w.current(), 0, 2)
	e.setClock(-2 * corecounter.Hour)
	w.imposed(w.current(), 0, 0)
}

func askViolationsHammered(e *examiner) {
	w := newWarden(e, corecounter.Penalty{Window: corecounter.Hour, Threshold: corecounter.ViolationsMax, Multipliers: []int64{1}})
	e.take(force("limit", w.limit, 1))
	e.hammer(func(goroutine, i int) ([]corecounter.Check, func([]corecounter.Result)) {
		violation := int64(goroutine*hammerCalls+i) + 1
		return []corecounter.Check{penaltyCheck(corecounter.OpTake, "p", &w.penalty), withGuard(take("limit", w.limit, 1), 1, violation)},
			func([]corecounter.Result) {}
	})
	w.imposed(w.current(), 0, hammerers*hammerCalls)
}

func askReset(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, corecounter.Minute)
		e.setClock(30 * corecounter.Second)
		e.mustAdmit(take(key, l, 7))
		r := e.takeOne(reset(key, l))
		if r.Granted != 7 || r.Denied || r.Wait != 0 || r.Receipt != 0 || r.Remaining != 10 {
			e.Fatalf("%s: forgetting a counter of 7: %+v, want 7 granted and 10 left", a, r)
		}
		fresh := e.takeOne(look(key+" fresh", l, 1))
		if again := e.takeOne(look(key, l, 1)); again != fresh {
			e.Fatalf("%s: a forgotten counter: %+v, want what a fresh one answers: %+v", a, again, fresh)
		}
		c := reset(key, l)
		if !isZero(keptSlot(c, e.holds(e, &c), e.now)) {
			e.Fatalf("%s: of a forgotten counter there is kept %+v", a, e.holds(e, &c))
		}
		// Now the counter is in debt, and the next window has begun. A sliding window still counts
		// units of the previous window. The other check denies the call.
		e.takeOne(force(key, l, 20))
		e.setClock(90 * corecounter.Second)
		r = e.take(reset(key, l), take("never", l, 11))[0]
		if r.Granted < 0 || r.Remaining != 10 {
			e.Fatalf("%s: forgetting a debt beside a denial: %+v, want 10 left", a, r)
		}
		e.mustAdmit(take(key, l, 10))
		e.equal("what is forgotten of nothing", e.takeOne(reset(key+" never", l)).Granted, 0)
	}
}
