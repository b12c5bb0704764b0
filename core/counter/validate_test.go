// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestValidateChecks(t *testing.T) {
	l, err := NewLimit(TokenBucket, 10, Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	good := func(key string) Check { return Check{Key: []byte(key), Limit: &l, Cost: 1, Min: 1, Max: 1} }
	with := func(change func(c *Check)) []Check {
		checks := []Check{good("a"), good("b")}
		change(&checks[1])
		return checks
	}
	var many []Check
	for i := range ChecksMax + 1 {
		many = append(many, good(fmt.Sprint(i)))
	}
	room := make([]Result, ChecksMax+1)
	taken := map[string][]Check{
		"none":                 nil,
		"as many as there are": many[:ChecksMax],
		"the greatest cost":    with(func(c *Check) { c.Cost = CountMax + 1 }),
		"cost 0":               with(func(c *Check) { c.Cost = 0 }),
		"any most":             with(func(c *Check) { c.Op, c.Max = OpUpTo, math.MaxInt64 }),
		"up to nothing":        with(func(c *Check) { c.Op, c.Cost, c.Max = OpUpTo, 0, 0 }),
		"a receipt of nothing": with(func(c *Check) { c.Op, c.Receipt = OpRefund, 0 }),
	}
	denied := map[string][]Check{
		"too many":             many,
		"same key":             with(func(c *Check) { c.Key = []byte("a") }),
		"key is empty":         with(func(c *Check) { c.Key = nil }),
		"limit is missing":     with(func(c *Check) { c.Limit = nil }),
		"the limit is missing": with(func(c *Check) { c.Limit = &Limit{} }),
		"operation":            with(func(c *Check) { c.Op = OpReset + 1 }),
		"scope":                with(func(c *Check) { c.ScopeLen = 2 }),
		"cost is out":          with(func(c *Check) { c.Cost = -1 }),
		"the cost is out of":   with(func(c *Check) { c.Cost = CountMax + 2 }),
		"min":                  with(func(c *Check) { c.Op, c.Min = OpUpTo, 0 }),
		"min is out":           with(func(c *Check) { c.Op, c.Min = OpUpTo, 2 }),
		"max":                  with(func(c *Check) { c.Op, c.Max = OpUpTo, 0 }),
		"share":                with(func(c *Check) { c.Op, c.ShareMille = OpUpTo, 1001 }),
		"receipt":              with(func(c *Check) { c.Op, c.Receipt = OpRefund, 1<<53+1 }),
	}
	holdValid(t, taken, denied)
	if err := ValidateChecks(many[:2], room[:1]); !errors.Is(err, ErrInvalid) {
		t.Errorf("one result for two checks: %v", err)
	}
	if n := testing.AllocsPerRun(100, func() { _ = ValidateChecks(many[:8], room) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestValidateCalendarsAndPenalties(t *testing.T) {
	l := mustParse(t, "10/1m tb")
	good := Check{Key: []byte("a"), Limit: &l, Cost: 1, Min: 1, Max: 1}
	with := func(change func(c *Check)) []Check {
		checks := []Check{good}
		change(&checks[0])
		return checks
	}
	daily, bounds := mustParse(t, "10/day"), Bounds{1, 2, 3, 4}
	penalized := func(change func(p, c *Check)) []Check {
		checks := []Check{{Key: []byte("p"), Penalty: &Penalty{Window: Hour, Threshold: 3, Multipliers: []int64{1, 2}}}, good}
		checks[1].Guard, checks[1].Violation = 1, 1
		change(&checks[0], &checks[1])
		return checks
	}
	punishing := func(change func(p *Penalty)) []Check { return penalized(func(p, _ *Check) { change(p.Penalty) }) }
	taken := map[string][]Check{
		"a reset":              with(func(c *Check) { c.Op, c.Cost = OpReset, 0 }),
		"a calendar window":    with(func(c *Check) { c.Limit, c.Bounds = &daily, &bounds }),
		"the latest instants":  with(func(c *Check) { c.Limit, c.Bounds = &daily, &Bounds{1, 2, 3, 1 << 52} }),
		"a penalty":            penalized(func(_, _ *Check) {}),
		"a reset of a penalty": penalized(func(p, _ *Check) { p.Op = OpReset }),
		"the greatest penalty": punishing(func(p *Penalty) {
			p.Window, p.Max, p.Threshold, p.Multipliers = PenaltyMax, PenaltyMax, ViolationsMax, []int64{MultiplierMax}
		}),
		"the greatest violation": penalized(func(_, c *Check) { c.Violation = ViolationMax }),
		"a violation unguarded":  penalized(func(_, c *Check) { c.Guard = 0 }),
	}
	denied := map[string][]Check{
		"calendar window needs boundaries": with(func(c *Check) { c.Limit = &daily }),
		"no other window may have them":    with(func(c *Check) { c.Bounds = &bounds }),
		"the boundaries are not":           with(func(c *Check) { c.Limit, c.Bounds = &daily, &Bounds{1, 2, 2, 3} }),
		"the boundaries are not in":        with(func(c *Check) { c.Limit, c.Bounds = &daily, &Bounds{0, 2, 3, 4} }),
		"boundaries are not in ascending":  with(func(c *Check) { c.Limit, c.Bounds = &daily, &Bounds{1, 3, 2, 4} }),
		"in ascending order":               with(func(c *Check) { c.Limit, c.Bounds = &daily, &Bounds{1, 2, 3, 1<<52 + 1} }),
		"a penalty has no limit":           penalized(func(p, _ *Check) { p.Limit = &l }),
		"a penalty has no limit, no bound": penalized(func(p, _ *Check) { p.Bounds = &bounds }),
		"no cost":                          penalized(func(p, _ *Check) { p.Cost = 1 }),
		"no guard":                         penalized(func(p, _ *Check) { p.Guard = 1 }),
		"not valid for a penalty":          penalized(func(p, _ *Check) { p.Op = OpForce }),
		"the window is out":                punishing(func(p *Penalty) { p.Window = 0 }),
		"the window is out of bounds":      punishing(func(p *Penalty) { p.Window = PenaltyMax + 1 }),
		"the longest penalty":              punishing(func(p *Penalty) { p.Max = -1 }),
		"the longest penalty is out":       punishing(func(p *Penalty) { p.Max = PenaltyMax + 1 }),
		"the threshold":                    punishing(func(p *Penalty) { p.Threshold = 0 }),
		"the threshold is out":             punishing(func(p *Penalty) { p.Threshold = ViolationsMax + 1 }),
		"too few":                          punishing(func(p *Penalty) { p.Multipliers = nil }),
		"too many multipliers":             punishing(func(p *Penalty) { p.Multipliers = make([]int64, MultipliersMax+1) }),
		"a multiplier":                     punishing(func(p *Penalty) { p.Multipliers[1] = 0 }),
		"a multiplier is out":              punishing(func(p *Penalty) { p.Multipliers[0] = MultiplierMax + 1 }),
		"the guard is not a penalty":       penalized(func(_, c *Check) { c.Guard = 2 }),
		"the guard is no":                  penalized(func(_, c *Check) { c.Guard = 3 }),
		"the guard is":                     penalized(func(_, c *Check) { c.Guard = -1 }),
		"the violation is out":             penalized(func(_, c *Check) { c.Violation = 0 }),
		"the violation is out of":          penalized(func(_, c *Check) { c.Violation = ViolationMax + 1 }),
	}
	holdValid(t, taken, denied)
}

// holdValid fails the test if a call in the map named taken is rejected, or if a call in the map
// named denied is accepted. The key of a call in the second map is part of the error with which the
// call must be rejected.
func holdValid(t *testing.T, taken, denied map[string][]Check) {
	t.Helper()
	room := make([]Result, ChecksMax+1)
	for name, checks := range taken {
		if err := ValidateChecks(checks, room); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for why, checks := range denied {
		err := ValidateChecks(checks, room)
		if why == "too many" {
			why = "at most 64"
		}
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// TestReplay replays each check of a call and compares the result with the result of Decide.
func TestReplay(t *testing.T) {
	var checks []Check
	for i, a := range []Algorithm{FixedWindow, SlidingWindow, TokenBucket} {
		l, err := NewLimit(a, 10, Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		for op := OpTake; op <= OpReset; op++ {
			checks = append(checks, Check{Limit: &l, Op: op, Cost: int64(3 * i), Min: 1, Max: 20, ShareMille: 500,
				Receipt: 1_700_000_000 * Second, Shadow: op%2 == 0})
		}
	}
	for _, used := range []int64{0, 4, 9, 10, 15} {
		const now = 1_700_000_021 * Second
		slots, results := make([]Slot, len(checks)), make([]Result, len(checks))
		for i := range slots {
			unit, _, _ := checks[i].Limit.Arithmetic()
			slots[i].State = State{At: now - now%Minute, Used: used * max(1, unit), Aux: unit}
		}
		before := append([]Slot(nil), slots...)
		Decide(now, checks, slots, results)
		admitted := true
		for i, r := range results {
			admitted = admitted && (!r.Denied || checks[i].Shadow || checks[i].Op > OpUpTo)
		}
		for i := range checks {
			var r Result
			Replay(now, admitted, &checks[i], &before[i], &r)
			if r != results[i] || before[i].State != slots[i].State || before[i].Write != slots[i].Write {
				t.Errorf("used %d, check %d: %+v, Decide says %+v", used, i, r, results[i])
			}
		}
	}
}
