// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock/penstock/core"
)

// invalid fails the test unless the call is answered with ErrInvalid.
func (e *examiner) invalid(what string, checks []core.Check, results []core.Result) {
	e.Helper()
	err := e.Store.Take(context.Background(), checks, results)
	if !errors.Is(err, core.ErrInvalid) {
		e.Fatalf("%s: the error is %v, want one that wraps ErrInvalid", what, err)
	}
	if errors.Is(err, core.ErrUnavailable) {
		e.Fatalf("%s: the error %v wraps ErrUnavailable too: the store is not at fault", what, err)
	}
}

func askDuplicateKeys(e *examiner) {
	l, other := limit(core.FixedWindow, 10, core.Minute), limit(core.FixedWindow, 20, core.Minute)
	e.invalid("a key twice", []core.Check{take("a", l, 1), take("b", l, 1), take("a", l, 1)}, make([]core.Result, 3))
	e.invalid("a key twice with two limits", []core.Check{take("a", l, 1), take("a", other, 1)}, make([]core.Result, 2))
	e.invalid("a key taken and looked at", []core.Check{take("a", l, 1), look("a", l, 1)}, make([]core.Result, 2))
	e.left("a", l, 10)
	e.left("b", l, 10)
}

func askTooManyChecks(e *examiner) {
	l := limit(core.SlidingWindow, 10, core.Minute)
	var checks []core.Check
	for i := range core.ChecksMax + 1 {
		checks = append(checks, take(fmt.Sprint("key ", i), l, 1))
	}
	e.invalid("a check too many", checks, make([]core.Result, len(checks)))
	e.left("key 0", l, 10)
	for i, r := range e.take(checks[:core.ChecksMax]...) {
		if r.Granted != 1 || r.Remaining != 9 {
			e.Fatalf("check %d of as many as there may be: %+v, want 1 granted", i, r)
		}
	}
}

func askOutOfBounds(e *examiner) {
	l, log := limit(core.TokenBucket, 10, core.Minute), limit(core.SlidingLog, 10, core.Minute)
	none := take("k", l, 1)
	none.Limit = nil
	zero := take("k", core.Limit{}, 1)
	wrong := map[string]core.Check{
		"no limit":                    none,
		"the zero limit":              zero,
		"an unknown operation":        check(core.OpReset+1, "k", l, 1),
		"a negative cost":             take("k", l, -1),
		"a negative give back":        giveBack("k", l, -1, start),
		"a negative forced charge":    force("k", l, -1),
		"a cost beyond CountMax + 1":  take("k", l, core.CountMax+2),
		"a force beyond CountMax + 1": force("k", l, core.CountMax+2),
		"min 0":                       upTo("k", l, 0, 1, 1, 0),
		"min above the cost":          upTo("k", l, 3, 2, 5, 0),
		"min above 1 for cost 0":      upTo("k", l, 2, 0, 5, 0),
		"max below the cost":          upTo("k", l, 1, 3, 2, 0),
		"a share above 1000":          upTo("k", l, 1, 1, 5, 1001),
		"a negative share":            upTo("k", l, 1, 1, 5, -1),
		"a negative age":              leased(upTo("k", l, 1, 1, 5, 0), -1),
		"an age beyond the window":    leased(upTo("k", l, 1, 1, 5, 0), core.Minute+1),
		"a give back of such an age":  leased(giveBack("k", l, 1, start), core.Minute+1),
		"an age of a take":            leased(take("k", l, 1), core.Second),
		"an age of a look":            leased(look("k", l, 1), core.Second),
		"an age of a forced charge":   leased(force("k", l, 1), core.Second),
		"an age of a reset":           leased(reset("k", l), core.Second),
		"a lease of a log":            leased(upTo("k", log, 1, 1, 5, 0), core.Second),
		"a log's lease given back":    leased(giveBack("k", log, 1, start), core.Second),
	}
	for what, c := range wrong {
		e.invalid(what, []core.Check{take("beside", l, 1), c}, make([]core.Result, 2))
	}
	for what, c := range datedMistakes() {
		e.invalid(what, []core.Check{penaltyCheck(core.OpLook, "beside a penalty", soon()), take("beside", l, 1), c}, make([]core.Result, 3))
	}
	e.invalid("too few results", []core.Check{take("beside", l, 1), take("k", l, 1)}, make([]core.Result, 1))
	e.left("k", l, 10)
	e.left("beside", l, 10)
}

// soon returns a penalty that is imposed at once.
func soon() *core.Penalty {
	return &core.Penalty{Window: core.Hour, Threshold: 1, Multipliers: []int64{1}}
}

// datedMistakes returns checks that are wrong in what they say of penalties or of the calendar, as the third of a call
// whose first is of a penalty.
func datedMistakes() map[string]core.Check {
	day, minute := zoned("day", "UTC"), limit(core.FixedWindow, 10, core.Minute)
	perDay := day.limit(10)
	bounded := func(l core.Limit, change func(b *core.Bounds)) core.Check {
		c := day.dated(take("k", l, 1), start)
		if change != nil {
			change(c.Bounds)
		}
		return c
	}
	punished := func(change func(p *core.Penalty, c *core.Check)) core.Check {
		p := soon()
		c := penaltyCheck(core.OpTake, "p", p)
		change(p, &c)
		return c
	}
	return map[string]core.Check{
		"a calendar window without boundaries": take("k", perDay, 1),
		"boundaries of another window":         bounded(minute, nil),
		"boundaries that are equal":            bounded(perDay, func(b *core.Bounds) { b[2] = b[1] }),
		"boundaries that go back":              bounded(perDay, func(b *core.Bounds) { b[3] = b[0] }),
		"boundaries before the epoch":          bounded(perDay, func(b *core.Bounds) { b[0] = 0 }),
		"a guard that is no penalty":           guarded(take("k", minute, 1), 2, 1),
		"a guard that is not in the call":      guarded(take("k", minute, 1), 4, 1),
		"a negative guard":                     guarded(take("k", minute, 1), -1, 1),
		"the violation 0":                      guarded(take("k", minute, 1), 1, 0),
		"a violation beyond ViolationMax":      guarded(take("k", minute, 1), 1, core.ViolationMax+1),
		"a penalty that is given back":         punished(func(_ *core.Penalty, c *core.Check) { c.Op = core.OpGiveBack }),
		"a penalty that is forced":             punished(func(_ *core.Penalty, c *core.Check) { c.Op = core.OpForce }),
		"a penalty up to n":                    punished(func(_ *core.Penalty, c *core.Check) { c.Op, c.Min = core.OpUpTo, 1 }),
		"a penalty with a limit":               punished(func(_ *core.Penalty, c *core.Check) { c.Limit = &minute }),
		"a penalty with an age":                punished(func(_ *core.Penalty, c *core.Check) { c.Age = 1 }),
		"a penalty with a cost":                punished(func(_ *core.Penalty, c *core.Check) { c.Cost = 1 }),
		"a penalty that is guarded":            punished(func(_ *core.Penalty, c *core.Check) { c.Guard, c.Violation = 1, 1 }),
		"no window of a penalty":               punished(func(p *core.Penalty, _ *core.Check) { p.Window = 0 }),
		"a window beyond PenaltyMax":           punished(func(p *core.Penalty, _ *core.Check) { p.Window = core.PenaltyMax + 1 }),
		"a negative longest penalty":           punished(func(p *core.Penalty, _ *core.Check) { p.Max = -1 }),
		"a longest penalty beyond PenaltyMax":  punished(func(p *core.Penalty, _ *core.Check) { p.Max = core.PenaltyMax + 1 }),
		"the threshold 0":                      punished(func(p *core.Penalty, _ *core.Check) { p.Threshold = 0 }),
		"a threshold beyond ViolationsMax":     punished(func(p *core.Penalty, _ *core.Check) { p.Threshold = core.ViolationsMax + 1 }),
		"no multipliers":                       punished(func(p *core.Penalty, _ *core.Check) { p.Multipliers = nil }),
		"too many multipliers":                 punished(func(p *core.Penalty, _ *core.Check) { p.Multipliers = ones(core.MultipliersMax + 1) }),
		"the multiplier 0":                     punished(func(p *core.Penalty, _ *core.Check) { p.Multipliers = []int64{1, 0} }),
		"a multiplier beyond MultiplierMax":    punished(func(p *core.Penalty, _ *core.Check) { p.Multipliers = []int64{core.MultiplierMax + 1} }),
	}
}

func ones(n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = 1
	}
	return out
}
