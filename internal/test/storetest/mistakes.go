// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"

	corecounter "github.com/penstock/penstock/core/counter"
)

// examiner.invalid fails the test unless the call fails with ErrInvalid.
func (e *examiner) invalid(what string, checks []corecounter.Check, results []corecounter.Result) {
	e.Helper()
	err := e.Store.Take(context.Background(), checks, results)
	if !errors.Is(err, corecounter.ErrInvalid) {
		e.Fatalf("%s: the error is %v, want one that wraps ErrInvalid", what, err)
	}
	if errors.Is(err, corecounter.ErrUnavailable) {
		e.Fatalf("%s: the error %v wraps ErrUnavailable too: the store is not at fault", what, err)
	}
}

func askDuplicateKeys(e *examiner) {
	l, other := limit(corecounter.FixedWindow, 10, corecounter.Minute), limit(corecounter.FixedWindow, 20, corecounter.Minute)
	e.invalid("a key twice", []corecounter.Check{take("a", l, 1), take("b", l, 1), take("a", l, 1)}, make([]corecounter.Result, 3))
	e.invalid("a key twice with two limits", []corecounter.Check{take("a", l, 1), take("a", other, 1)}, make([]corecounter.Result, 2))
	e.invalid("a key taken and looked at", []corecounter.Check{take("a", l, 1), look("a", l, 1)}, make([]corecounter.Result, 2))
	e.left("a", l, 10)
	e.left("b", l, 10)
}

func askTooManyChecks(e *examiner) {
	l := limit(corecounter.SlidingWindow, 10, corecounter.Minute)
	var checks []corecounter.Check
	for i := range corecounter.ChecksMax + 1 {
		checks = append(checks, take(fmt.Sprint("key ", i), l, 1))
	}
	e.invalid("a check too many", checks, make([]corecounter.Result, len(checks)))
	e.left("key 0", l, 10)
	for i, r := range e.take(checks[:corecounter.ChecksMax]...) {
		if r.Granted != 1 || r.Remaining != 9 {
			e.Fatalf("check %d of as many as there may be: %+v, want 1 granted", i, r)
		}
	}
}

func askOutOfBounds(e *examiner) {
	l, log := limit(corecounter.TokenBucket, 10, corecounter.Minute), limit(corecounter.SlidingLog, 10, corecounter.Minute)
	none := take("k", l, 1)
	none.Limit = nil
	zero := take("k", corecounter.Limit{}, 1)
	wrong := map[string]corecounter.Check{
		"no limit":                    none,
		"the zero limit":              zero,
		"an unknown operation":        check(corecounter.OpReset+1, "k", l, 1),
		"a negative cost":             take("k", l, -1),
		"a negative give back":        refund("k", l, -1, start),
		"a negative forced charge":    force("k", l, -1),
		"a cost beyond CountMax + 1":  take("k", l, corecounter.CountMax+2),
		"a force beyond CountMax + 1": force("k", l, corecounter.CountMax+2),
		"min 0":                       upTo("k", l, 0, 1, 1, 0),
		"min above the cost":          upTo("k", l, 3, 2, 5, 0),
		"min above 1 for cost 0":      upTo("k", l, 2, 0, 5, 0),
		"max below the cost":          upTo("k", l, 1, 3, 2, 0),
		"a share above 1000":          upTo("k", l, 1, 1, 5, 1001),
		"a negative share":            upTo("k", l, 1, 1, 5, -1),
		"a negative age":              asLeased(upTo("k", l, 1, 1, 5, 0), -1),
		"an age beyond the window":    asLeased(upTo("k", l, 1, 1, 5, 0), corecounter.Minute+1),
		"a give back of such an age":  asLeased(refund("k", l, 1, start), corecounter.Minute+1),
		"an age of a take":            asLeased(take("k", l, 1), corecounter.Second),
		"an age of a look":            asLeased(look("k", l, 1), corecounter.Second),
		"an age of a forced charge":   asLeased(force("k", l, 1), corecounter.Second),
		"an age of a reset":           asLeased(reset("k", l), corecounter.Second),
		"a lease of a log":            asLeased(upTo("k", log, 1, 1, 5, 0), corecounter.Second),
		"a log's lease given back":    asLeased(refund("k", log, 1, start), corecounter.Second),
	}
	for what, c := range wrong {
		e.invalid(what, []corecounter.Check{take("beside", l, 1), c}, make([]corecounter.Result, 2))
	}
	for what, c := range wrongDatedChecks() {
		e.invalid(what, []corecounter.Check{penaltyCheck(corecounter.OpLook, "beside a penalty", immediatePenalty()), take("beside", l, 1), c}, make([]corecounter.Result, 3))
	}
	e.invalid("too few results", []corecounter.Check{take("beside", l, 1), take("k", l, 1)}, make([]corecounter.Result, 1))
	e.left("k", l, 10)
	e.left("beside", l, 10)
}

// immediatePenalty returns a penalty that the first violation imposes.
func immediatePenalty() *corecounter.Penalty {
	return &corecounter.Penalty{Window: corecounter.Hour, Threshold: 1, Multipliers: []int64{1}}
}

// wrongDatedChecks returns checks with invalid penalties or calendar boundaries. Each of them is
// meant to be the third check of a call whose first check is the check of a penalty.
func wrongDatedChecks() map[string]corecounter.Check {
	day, minute := newZoned("day", "UTC"), limit(corecounter.FixedWindow, 10, corecounter.Minute)
	perDay := day.limit(10)
	bounded := func(l corecounter.Limit, change func(b *corecounter.Bounds)) corecounter.Check {
		c := day.dated(take("k", l, 1), start)
		if change != nil {
			change(c.Bounds)
		}
		return c
	}
	punished := func(change func(p *corecounter.Penalty, c *corecounter.Check)) corecounter.Check {
		p := immediatePenalty()
		c := penaltyCheck(corecounter.OpTake, "p", p)
		change(p, &c)
		return c
	}
	return map[string]corecounter.Check{
		"a calendar window without boundaries": take("k", perDay, 1),
		"boundaries of another window":         bounded(minute, nil),
		"boundaries that are equal":            bounded(perDay, func(b *corecounter.Bounds) { b[2] = b[1] }),
		"boundaries that go back":              bounded(perDay, func(b *corecounter.Bounds) { b[3] = b[0] }),
		"boundaries before the epoch":          bounded(perDay, func(b *corecounter.Bounds) { b[0] = 0 }),
		"a guard that is no penalty":           withGuard(take("k", minute, 1), 2, 1),
		"a guard that is not in the call":      withGuard(take("k", minute, 1), 4, 1),
		"a negative guard":                     withGuard(take("k", minute, 1), -1, 1),
		"the violation 0":                      withGuard(take("k", minute, 1), 1, 0),
		"a violation beyond ViolationMax":      withGuard(take("k", minute, 1), 1, corecounter.ViolationMax+1),
		"a penalty that is given back":         punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Op = corecounter.OpRefund }),
		"a penalty that is forced":             punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Op = corecounter.OpForce }),
		"a penalty up to n":                    punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Op, c.Min = corecounter.OpUpTo, 1 }),
		"a penalty with a limit":               punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Limit = &minute }),
		"a penalty with an age":                punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Age = 1 }),
		"a penalty with a cost":                punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Cost = 1 }),
		"a penalty that is guarded":            punished(func(_ *corecounter.Penalty, c *corecounter.Check) { c.Guard, c.Violation = 1, 1 }),
		"no window of a penalty":               punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Window = 0 }),
		"a window beyond PenaltyMax":           punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Window = corecounter.PenaltyMax + 1 }),
		"a negative longest penalty":           punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Max = -1 }),
		"a longest penalty beyond PenaltyMax":  punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Max = corecounter.PenaltyMax + 1 }),
		"the threshold 0":                      punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Threshold = 0 }),
		"a threshold beyond ViolationsMax":     punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Threshold = corecounter.ViolationsMax + 1 }),
		"no multipliers":                       punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Multipliers = nil }),
		"too many multipliers": punished(func(p *corecounter.Penalty, _ *corecounter.Check) {
			p.Multipliers = makeOnes(corecounter.MultipliersMax + 1)
		}),
		"the multiplier 0": punished(func(p *corecounter.Penalty, _ *corecounter.Check) { p.Multipliers = []int64{1, 0} }),
		"a multiplier beyond MultiplierMax": punished(func(p *corecounter.Penalty, _ *corecounter.Check) {
			p.Multipliers = []int64{corecounter.MultiplierMax + 1}
		}),
	}
}

func makeOnes(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}
