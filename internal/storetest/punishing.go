// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"

	"github.com/penstock/penstock/core"
)

// warden is a penalty and a limit under it that is full for a minute at a time.
type warden struct {
	*examiner
	penalty core.Penalty
	limit   core.Limit
}

// guard asks a penalty and, beside it, whether one unit passes a limit whose refusal is a violation.
func (w *warden) guard(violation int64) (penalty, counter core.Result) {
	w.Helper()
	key := fmt.Sprint("limit ", violation)
	r := w.take(penaltyCheck(core.OpTake, "p", &w.penalty), guarded(take(key, w.limit, 1), 1, violation))
	return r[0], r[1]
}

// offend fills the limit, if it is not, and is refused by it.
func (w *warden) offend(violation int64) core.Result {
	w.Helper()
	w.take(force(fmt.Sprint("limit ", violation), w.limit, 1))
	penalty, counter := w.guard(violation)
	if !counter.Refused {
		w.Fatalf("limit %d: %+v, want it refused", violation, counter)
	}
	return penalty
}

// imposed fails the test unless a penalty of a length is in force.
func (w *warden) imposed(r core.Result, wait core.Micros, violations int64) {
	w.Helper()
	if r.Refused != (wait > 0) || r.Wait != wait || r.Violations != violations || r.Granted != 0 {
		w.Fatalf("at %s the penalty: %+v, want a wait of %s after %d violations", clockTime(w.now), r, wait, violations)
	}
}

// standing looks at the penalty.
func (w *warden) standing() core.Result {
	w.Helper()
	return w.one(penaltyCheck(core.OpLook, "p", &w.penalty))
}

func newWarden(e *examiner, p core.Penalty) *warden {
	return &warden{e, p, limit(core.FixedWindow, 1, core.Minute)}
}

func askPenaltySteps(e *examiner) {
	for _, threshold := range []int64{1, 2, 5} {
		w := newWarden(e, core.Penalty{Window: 10 * core.Hour, Threshold: threshold, Multipliers: []int64{1, 3, 2, 5}, Max: 4 * core.Minute})
		e.take(penaltyCheck(core.OpReset, "p", &w.penalty))
		e.after(0)
		for n := int64(1); n < threshold; n++ {
			w.imposed(w.offend(1), 0, n)
			e.at(e.now + core.Minute)
		}
		for i, minutes := range []core.Micros{1, 3, 2, 4, 4, 4} { // 5 are cut to 4
			wait := minutes * core.Minute
			w.imposed(w.offend(1), wait, threshold+int64(i))
			e.at(e.now + wait)
			w.imposed(w.standing(), 0, threshold+int64(i))
		}
	}
	// Without a bound the window is it.
	w := newWarden(e, core.Penalty{Window: 150 * core.Second, Threshold: 1, Multipliers: []int64{1_000_000}})
	e.take(penaltyCheck(core.OpReset, "p", &w.penalty))
	w.imposed(w.offend(2), 150*core.Second, 1)
}

func askPenaltyLasts(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: 1, Multipliers: []int64{4, 64}})
	other := limit(core.TokenBucket, 10, core.Minute)
	w.imposed(w.offend(1), 4*core.Minute, 1)
	for _, after := range []core.Micros{0, 1, core.Minute, 2*core.Minute + 7, 4*core.Minute - 1} {
		e.after(after)
		r, _ := w.guard(1)
		w.imposed(r, 4*core.Minute-after, 1)
		// A limit that has nothing to do with it refuses nothing, is charged nothing, and what is forced is recorded.
		all := e.take(take("other", other, 10), penaltyCheck(core.OpTake, "p", &w.penalty), force("forced", other, 1))
		w.imposed(all[1], 4*core.Minute-after, 1)
		if all[0].Refused || all[0].Granted != 0 || all[2].Granted != 1 {
			e.Fatalf("beside a penalty in force: %+v, want nothing charged and 1 recorded", all)
		}
		w.imposed(w.standing(), 4*core.Minute-after, 1)
		if r := e.take(penaltyCheck(core.OpLook, "p", &w.penalty), take("looked", other, 1)); r[1].Granted != 1 {
			e.Fatalf("beside a look at a penalty in force: %+v, want 1 granted", r)
		}
		e.take(reset("looked", other))
	}
	e.after(4 * core.Minute)
	w.imposed(w.standing(), 0, 1)
	if r, counter := w.guard(1); r.Refused || counter.Granted != 1 {
		e.Fatalf("when the penalty is over: %+v and %+v, want 1 granted", r, counter)
	}
	e.left("other", other, 10)
}

func askOneViolation(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: 100, Multipliers: []int64{1}})
	e.after(20 * core.Second)
	for range 20 {
		w.imposed(w.offend(1), 0, 1)
	}
	e.after(core.Minute - 1)
	w.imposed(w.offend(1), 0, 1)
	e.after(core.Minute)
	w.imposed(w.offend(1), 0, 2)
	w.imposed(w.offend(2), 0, 3) // another limit: another violation
	// Several in one call.
	var checks []core.Check
	for v := range int64(5) {
		checks = append(checks, guarded(take(fmt.Sprint("limit ", 1+v), w.limit, 1), 6, 1+v))
		e.take(force(fmt.Sprint("limit ", 1+v), w.limit, 1))
	}
	checks = append(checks, penaltyCheck(core.OpTake, "p", &w.penalty))
	w.imposed(e.take(checks...)[5], 0, 6)
	w.imposed(e.take(checks...)[5], 0, 6)
}

func askLongestWait(e *examiner) {
	w := newWarden(e, core.Penalty{Window: 40 * core.Hour, Threshold: 3, Multipliers: []int64{2}})
	long := limit(core.FixedWindow, 1, core.Hour)
	all := func() []core.Result {
		return e.take(penaltyCheck(core.OpTake, "p", &w.penalty), guarded(take("limit 1", w.limit, 1), 1, 1),
			guarded(take("long", long, 1), 1, 2))
	}
	all()
	w.imposed(all()[0], 0, 2)
	e.after(10 * core.Minute)
	w.take(force("limit 1", w.limit, 1))
	w.imposed(all()[0], 100*core.Minute, 3) // the long one is known, and its 50 minutes count
}

func askNoViolation(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: 1, Multipliers: []int64{1}})
	full, free := limit(core.SlidingLog, 1, core.Minute), limit(core.FixedWindow, 9, core.Minute)
	e.admitted(take("full", full, 1))
	e.admitted(take("refusing", full, 1))
	refusing := take("refusing", full, 1) // refuses the call, and is nobody's violation
	for what, k := range map[string]core.Check{
		"a limit without a guard":     take("full", full, 1),
		"a limit that passes":         guarded(take("free", free, 1), 1, 1),
		"a limit that is only tried":  guarded(shadow(take("full", full, 1)), 1, 1),
		"a look":                      guarded(look("full", full, 1), 1, 1),
		"a settlement":                guarded(force("forced", full, 1), 1, 1),
		"a give back":                 guarded(giveBack("full", full, 1, 7), 1, 1),
		"a reset":                     guarded(reset("reset", full), 1, 1),
		"a cost of nothing":           guarded(take("full", full, 0), 1, 1),
		"a cost that can never pass":  guarded(take("full", full, 2), 1, 1),
		"a batch that can never pass": guarded(upTo("full", full, 2, 2, 2, 0), 1, 1),
	} {
		r := e.take(penaltyCheck(core.OpTake, "p", &w.penalty), k, refusing)
		if r[0].Refused || r[0].Wait != 0 || r[0].Violations != 0 {
			e.Fatalf("%s: %+v, want no violation", what, r)
		}
		w.imposed(w.standing(), 0, 0)
	}
	// A refusal in another client's record.
	other := core.Penalty{Window: core.Hour, Threshold: 50, Multipliers: []int64{1}}
	r := e.take(penaltyCheck(core.OpTake, "p", &w.penalty), penaltyCheck(core.OpTake, "other", &other), guarded(refusing, 2, 1))
	if r[0].Refused || r[0].Violations != 0 || r[1].Violations != 1 {
		e.Fatalf("a refusal in another client's record: %+v, want a violation only there", r)
	}
	// A refusal beside a look at the penalty is none either, and nor is one while another penalty is in force.
	k := guarded(take("full", full, 1), 1, 1)
	e.take(penaltyCheck(core.OpLook, "p", &w.penalty), k)
	w.imposed(w.standing(), 0, 0)
	q := w.penalty
	e.take(penaltyCheck(core.OpTake, "q", &q), k)
	e.take(penaltyCheck(core.OpTake, "p", &w.penalty), k, penaltyCheck(core.OpTake, "q", &q))
	w.imposed(w.standing(), 0, 0)
	// And a batch that was refused is one.
	r = e.take(penaltyCheck(core.OpTake, "p", &w.penalty), guarded(upTo("full", full, 1, 1, 1, 0), 1, 1))
	w.imposed(r[0], core.Minute, 1)
}

func askDecay(e *examiner) {
	w := newWarden(e, core.Penalty{Window: 10 * core.Minute, Threshold: 100, Multipliers: []int64{1}})
	for i := range int64(5) {
		e.after(core.Micros(i) * core.Minute)
		w.imposed(w.offend(1), 0, i+1)
	}
	for i := range int64(5) {
		e.after(core.Micros(10+i)*core.Minute - 1)
		w.imposed(w.standing(), 0, 5-i)
		e.after(core.Micros(10+i) * core.Minute)
		w.imposed(w.standing(), 0, 4-i)
	}
	w.imposed(w.offend(1), 0, 1)
	w.penalty.Window = core.Hour // a longer memory finds what is not yet dropped, and no more than is kept
	e.at(e.now + core.Minute)
	if n := w.offend(1).Violations; n < 2 || n > 7 {
		e.Fatalf("%d violations, want 2 to 7", n)
	}
}

func askViolationsMax(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: core.ViolationsMax, Multipliers: []int64{1, 9}})
	w.limit = limit(core.FixedWindow, 2, core.Minute)
	const each = core.ChecksMax - 1
	var forced []core.Check
	checks := []core.Check{penaltyCheck(core.OpTake, "p", &w.penalty)}
	for v := range int64(each) {
		key := fmt.Sprint("limit ", v)
		forced = append(forced, force(key, w.limit, 1))
		checks = append(checks, guarded(take(key, w.limit, 2), 1, 1+v))
	}
	for i := int64(0); i*each < core.ViolationsMax+2*each; i++ {
		e.after(core.Micros(i) * core.Minute)
		e.take(forced...)
		r := e.take(checks...)[0]
		n := min(core.ViolationsMax, (i+1)*each)
		wait := core.Micros(0)
		if n == core.ViolationsMax {
			wait = core.Minute
		}
		w.imposed(r, wait, n)
		if _, violations := e.Penalty(e, []byte("p")); int64(len(violations)) != n {
			e.Fatalf("%d violations are kept, want %d", len(violations), n)
		}
	}
	// Of those of one instant the ones that sort first are forgotten first: every store keeps the same.
	_, violations := e.Penalty(e, []byte("p"))
	inOrder(violations)
	last := int64(core.ViolationsMax-1)/each + 2
	for i, v := range violations {
		position := (last+1)*each - core.ViolationsMax + int64(i)
		at := start + core.Micros(position/each)*core.Minute
		if want := (core.Violation{At: at, Until: at + core.Minute, ID: 1 + position%each}); v != want {
			e.Fatalf("violation %d is %+v, want %+v", i, v, want)
		}
	}
}

func askLift(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: 2, Multipliers: []int64{5}})
	lift := func() core.Result { return e.one(penaltyCheck(core.OpReset, "p", &w.penalty)) }
	w.imposed(w.offend(1), 0, 1)
	w.imposed(w.offend(2), 5*core.Minute, 2)
	if r := lift(); r.Refused || r.Wait != 0 || r.Violations != 0 || r.Granted != 2 {
		e.Fatalf("lifting a penalty after 2 violations: %+v, want 2 granted and no wait", r)
	}
	w.imposed(w.standing(), 0, 0)
	if until, violations := e.Penalty(e, []byte("p")); until != 0 || len(violations) != 0 {
		e.Fatalf("of a lifted penalty there is kept %d and %v, want nothing", until, violations)
	}
	w.imposed(w.offend(1), 0, 1)
	e.equal("what is lifted", lift().Granted, 1)
	e.equal("what is lifted of nothing", lift().Granted, 0)
	// It stands although the call is refused, and the call's own refusals are none in a record that is lifted.
	w.imposed(w.offend(1), 0, 1)
	r := e.take(penaltyCheck(core.OpReset, "p", &w.penalty), guarded(take("limit 1", w.limit, 1), 1, 1))
	if !r[1].Refused || r[0].Granted != 1 {
		e.Fatalf("lifting in a refused call: %+v, want it lifted", r)
	}
	w.imposed(w.standing(), 0, 0)
}

func askPenaltyClockBack(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: 2, Multipliers: []int64{5, 10}, Max: 20 * core.Minute})
	e.after(30 * core.Minute)
	w.imposed(w.offend(1), 0, 1)
	e.after(30*core.Minute - core.Second)
	w.imposed(w.offend(1), 0, 1) // the same violation
	e.after(31 * core.Minute)
	w.imposed(w.offend(2), 5*core.Minute, 2)
	e.after(30 * core.Minute) // a little ahead: it is in force until then
	w.imposed(w.standing(), 6*core.Minute, 2)
	e.after(-3 * core.Hour) // further than it may last: cut to that, and the violations are those of now
	w.imposed(w.standing(), 20*core.Minute, 2)
	r, _ := w.guard(1)
	w.imposed(r, 20*core.Minute, 2)
	e.after(-3*core.Hour + 20*core.Minute)
	e.take(reset("limit 1", w.limit))
	if r, counter := w.guard(1); r.Refused || counter.Granted != 1 {
		e.Fatalf("after the longest penalty there is: %+v and %+v, want 1 granted", r, counter)
	}
	e.after(-2*core.Hour - 1)
	w.imposed(w.standing(), 0, 2)
	e.after(-2 * core.Hour)
	w.imposed(w.standing(), 0, 0)
}

func askViolationsHammered(e *examiner) {
	w := newWarden(e, core.Penalty{Window: core.Hour, Threshold: core.ViolationsMax, Multipliers: []int64{1}})
	e.take(force("limit", w.limit, 1))
	e.hammer(func(goroutine, i int) ([]core.Check, func([]core.Result)) {
		violation := int64(goroutine*hammerCalls+i) + 1
		return []core.Check{penaltyCheck(core.OpTake, "p", &w.penalty), guarded(take("limit", w.limit, 1), 1, violation)},
			func([]core.Result) {}
	})
	w.imposed(w.standing(), 0, hammerers*hammerCalls)
}

func askReset(e *examiner) {
	for _, a := range algorithms {
		key, l := a.Label(), limit(a, 10, core.Minute)
		e.after(30 * core.Second)
		e.admitted(take(key, l, 7))
		r := e.one(reset(key, l))
		if r.Granted != 7 || r.Refused || r.Wait != 0 || r.Receipt != 0 || r.Remaining != 10 {
			e.Fatalf("%s: forgetting a counter of 7: %+v, want 7 granted and 10 left", a, r)
		}
		fresh := e.one(look(key+" fresh", l, 1))
		if again := e.one(look(key, l, 1)); again != fresh {
			e.Fatalf("%s: a forgotten counter: %+v, want what a fresh one answers: %+v", a, again, fresh)
		}
		c := reset(key, l)
		if !nothing(kept(c, e.holds(e, &c), e.now)) {
			e.Fatalf("%s: of a forgotten counter there is kept %+v", a, e.holds(e, &c))
		}
		// A debt, the window before, and beside a refusal.
		e.one(force(key, l, 20))
		e.after(90 * core.Second)
		r = e.take(reset(key, l), take("never", l, 11))[0]
		if r.Granted < 0 || r.Remaining != 10 {
			e.Fatalf("%s: forgetting a debt beside a refusal: %+v, want 10 left", a, r)
		}
		e.admitted(take(key, l, 10))
		e.equal("what is forgotten of nothing", e.one(reset(key+" never", l)).Granted, 0)
	}
}
