// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corecounter "github.com/penstock/penstock/core/counter"
)

// mutants holds, by the name of a promise, stores that break this promise on purpose. The tests
// check that the exam fails each of these stores.
var mutants = map[string][]mutant{
	"all or nothing":           {{"takes the checks one by one", apart}},
	"a denial costs nothing":   {{"charges what it refuses", changeStates(chargeDenied)}},
	"log_only decides nothing": {{"enforces shadows", changeEachCheck(unshadow)}, {"charges shadows in any case", changeStates(chargeShadow)}},
	"up to n":                  {{"shares out what it has given", changeEachCheck(shareAll)}, {"gives less than the least", changeEachCheck(leastOne)}, {"ignores the most", changeEachCheck(noMost)}},
	"a look leaves no trace":   {{"charges looks", changeEachCheck(chargeLooks)}, {"keeps what it looks at", keepLooks}},
	"cost 0 is granted":        {{"has no wait for cost 0", changeAnswers(noWaitForZero)}, {"refuses cost 0", changeAnswers(denyZero)}},
	"a whole limit, and no more": {
		{"admits one too many", changeEachCheck(oneMore)},
		{"counts in 32 bits", changeStates(countIn(1 << 32))}},
	"a cost above the capacity never passes": {{"waits for the window", changeAnswers(waitForWindow)}},

	"a refund goes to its window": {{"credits the window of now", changeEachCheck(creditNow)}, {"forgets the window before", changeEachCheck(onlyThisWindow)}},
	"a late refund is dropped":    {{"credits the window of now", changeEachCheck(creditNow)}},
	"never below zero":            {{"reports what was asked", changeAnswers(reportAll)}, {"goes below zero", changeStates(belowZero)}},
	"debt of at most one window":  {{"forces no more than there is", changeEachCheck(forceLooks)}, {"forces without end", changeStates(forceAll)}},

	"a key twice is invalid":                   {{"takes keys twice", acceptSome(func([]corecounter.Check, []corecounter.Result) bool { return true })}},
	"too many checks are invalid":              {{"takes any number", acceptSome(func(c []corecounter.Check, _ []corecounter.Result) bool { return len(c) > corecounter.ChecksMax })}, {"takes one less", oneLess}},
	"numbers out of bounds are invalid":        outOfBoundsMutants(),
	"a changed limit keeps what was consumed":  {{"counts under the limit's text", changeEachCheck(keyByLimit)}},
	"a changed unit rounds against the client": {{"rounds down", changeEachCheck(roundDown)}},

	"answers are dated by the store's clock":   {{"has no date", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) { r.At = 0 })}, {"dates in seconds", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) { r.At -= r.At % corecounter.Second })}},
	"windows are aligned to the epoch":         {{"starts windows elsewhere", changeClock(shifted)}},
	"a clock back within a window is absorbed": {{"starts again when the clock goes back", changeEachCheck(forgetAhead(0))}},
	"a clock back by an hour locks nobody out": {
		{"starts again when the clock goes back an hour", changeEachCheck(forgetAhead(corecounter.Minute))},
		{"never goes back", changeClock((&monotonicClock{}).never)}},
	"a clock forth by an hour":         {{"never goes back", changeClock((&monotonicClock{}).never)}, {"mistrusts the clock", changeClock((&monotonicClock{}).slow)}},
	"waits are the truth":              {{"rounds waits up to milliseconds", changeAnswers(roundWaits(corecounter.Millisecond, 1))}, {"rounds waits down", changeAnswers(roundWaits(10, 0))}, {"answers with the reset", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) { r.Wait = min(r.Wait, r.Reset) })}},
	"reset and next say what they say": {{"answers next with reset", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) { r.Next = r.Reset })}, {"counts resets from the epoch", changeAnswers(func(_ *corecounter.Check, r *corecounter.Result) { r.Reset += r.At })}},

	"a context that is done charges nothing": {{"ignores the context", func(m *Model, _ context.Context, c []corecounter.Check, r []corecounter.Result) error {
		return m.Take(context.Background(), c, r)
	}}, {"charges, then looks at the context", chargeAnyway}},
	"any bytes are a key":              {{"stops at NUL", renamed(untilNUL)}, {"keeps 255 bytes", renamed(truncated(255))}, {"mends UTF-8", renamed(func(k string) string { return strings.ToValidUTF8(k, "?") })}, {"folds case", renamed(strings.ToLower)}, {"trims", renamed(strings.TrimSpace)}},
	"keys belong to the caller":        {{"keeps the caller's bytes", aliasing}},
	"results are written whole":        {{"does not write what is zero", leaky}, {"leaves the violations", leavingViolations}},
	"hammered, exactly the limit":      {{"reads, and writes a moment later", gap}},
	"overlapping calls never deadlock": {{"locks in the order of the call", (&crossingMutant{held: map[string]bool{}}).take}, {"reads, and writes a moment later", gap}},
}

func chargeDenied(_ *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if r.Denied && c.Limit.Algorithm() != corecounter.SlidingLog {
		s.State.Used += c.Cost
	}
}

func unshadow(_ *Model, c *corecounter.Check) { c.Shadow = false }

func chargeShadow(_ *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if c.Shadow && r.Granted == 0 && c.Limit.Algorithm() == corecounter.FixedWindow {
		s.State.At, s.State.Used = r.At-r.At%c.Limit.Window(), s.State.Used+c.Cost
	}
}

func shareAll(_ *Model, c *corecounter.Check) {
	if c.Op == corecounter.OpUpTo && c.ShareMille > 0 {
		c.Min, c.Cost = 1, 0
	}
}

func leastOne(_ *Model, c *corecounter.Check) { c.Min = min(c.Min, 1) }

func noMost(_ *Model, c *corecounter.Check) { c.Max = corecounter.CountMax }

func chargeLooks(_ *Model, c *corecounter.Check) {
	if c.Op == corecounter.OpLook {
		c.Op = corecounter.OpTake
	}
}

// keepLooks implements a store that writes the advanced state of every counter, even if
// [corecounter.Decide] reports that the state need not be written.
func keepLooks(m *Model, _ context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return trusting(m, checks, results)
}

func noWaitForZero(c *corecounter.Check, r *corecounter.Result) {
	if c.Cost == 0 {
		r.Wait = 0
	}
}

func denyZero(c *corecounter.Check, r *corecounter.Result) {
	if c.Cost == 0 && r.Wait > 0 {
		r.Denied = true
	}
}

func oneMore(_ *Model, c *corecounter.Check) {
	if l, err := corecounter.NewLimit(c.Limit.Algorithm(), c.Limit.Count()+1, c.Limit.Window(), 0); err == nil {
		c.Limit = &l
	}
}

func countIn(modulus int64) func(*Model, *corecounter.Check, *corecounter.Result, *corecounter.Slot) {
	return func(_ *Model, _ *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
		s.State.Used %= modulus
	}
}

func waitForWindow(c *corecounter.Check, r *corecounter.Result) {
	if r.Wait == corecounter.Never {
		r.Wait = c.Limit.Window()
	}
}

func creditNow(m *Model, c *corecounter.Check) {
	if c.Op != corecounter.OpRefund {
		return
	}
	c.Receipt = m.now
	if a := c.Limit.Algorithm(); a == corecounter.FixedWindow || a == corecounter.SlidingWindow {
		c.Receipt -= m.now % c.Limit.Window()
	}
}

func onlyThisWindow(m *Model, c *corecounter.Check) {
	if c.Limit.Algorithm() == corecounter.SlidingWindow && c.Receipt != m.now-m.now%c.Limit.Window() {
		c.Receipt = 0
	}
}

func reportAll(c *corecounter.Check, r *corecounter.Result) {
	if c.Op == corecounter.OpRefund {
		r.Granted = c.Cost
	}
}

func belowZero(_ *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if c.Op == corecounter.OpRefund && c.Limit.Algorithm() == corecounter.FixedWindow {
		s.State.Used -= c.Cost - r.Granted
	}
}

func forceLooks(m *Model, c *corecounter.Check) {
	if c.Op == corecounter.OpForce {
		c.Op, c.Min, c.Max, c.ShareMille = corecounter.OpUpTo, 1, c.Cost, 0
	}
}

func forceAll(_ *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if c.Op == corecounter.OpForce && c.Limit.Algorithm() == corecounter.FixedWindow {
		s.State.Used += c.Cost - r.Granted
		r.Granted = c.Cost
	}
}

func oneLess(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	if len(checks) >= corecounter.ChecksMax {
		return corecounter.ErrInvalid
	}
	return m.Take(ctx, checks, results)
}

// outOfBoundsMutants returns stores that each accept one kind of invalid number.
func outOfBoundsMutants() []mutant {
	wrong := func(what string, is func(*corecounter.Check) bool) mutant {
		return mutant{"accepts " + what, acceptSome(func(checks []corecounter.Check, results []corecounter.Result) bool {
			c := &checks[len(checks)-1]
			return len(results) == len(checks) && (c.Limit != nil || c.Penalty != nil) && is(c)
		})}
	}
	counts := func(c *corecounter.Check) bool {
		return c.Penalty == nil && c.Limit.Count() > 0 && c.Guard == 0 && c.Bounds == nil
	}
	counter := func(what string, is func(*corecounter.Check) bool) mutant {
		return wrong(what, func(c *corecounter.Check) bool { return counts(c) && is(c) })
	}
	return []mutant{
		counter("a negative cost", func(c *corecounter.Check) bool { return c.Cost < 0 && c.Op == corecounter.OpTake }),
		counter("a negative give back", func(c *corecounter.Check) bool { return c.Cost < 0 && c.Op == corecounter.OpRefund }),
		counter("a negative force", func(c *corecounter.Check) bool { return c.Cost < 0 && c.Op == corecounter.OpForce }),
		counter("any great cost", func(c *corecounter.Check) bool { return c.Cost > corecounter.CountMax+1 && c.Op == corecounter.OpTake }),
		counter("any great force", func(c *corecounter.Check) bool { return c.Cost > corecounter.CountMax+1 && c.Op == corecounter.OpForce }),
		counter("min 0", func(c *corecounter.Check) bool { return c.Op == corecounter.OpUpTo && c.Min < 1 }),
		counter("min above the cost", func(c *corecounter.Check) bool {
			return c.Op == corecounter.OpUpTo && c.Min > max(1, c.Cost) && c.Cost > 0
		}),
		counter("min above 1 for cost 0", func(c *corecounter.Check) bool { return c.Op == corecounter.OpUpTo && c.Min > 1 && c.Cost == 0 }),
		counter("max below the cost", func(c *corecounter.Check) bool { return c.Op == corecounter.OpUpTo && c.Max < c.Cost }),
		counter("a share above 1000", func(c *corecounter.Check) bool { return c.ShareMille > 1000 }),
		counter("a negative share", func(c *corecounter.Check) bool { return c.ShareMille < 0 }),
		counter("a negative age", func(c *corecounter.Check) bool { return c.Age < 0 }),
		counter("any great age", func(c *corecounter.Check) bool { return c.Age > c.Limit.Window() && c.Op == corecounter.OpUpTo }),
		counter("any great age of what comes back", func(c *corecounter.Check) bool { return c.Age > c.Limit.Window() && c.Op == corecounter.OpRefund }),
		counter("an age of any operation", func(c *corecounter.Check) bool {
			return c.Age > 0 && c.Op != corecounter.OpUpTo && c.Op != corecounter.OpRefund
		}),
		counter("leases of a log", func(c *corecounter.Check) bool { return c.Age > 0 && c.Limit.Algorithm() == corecounter.SlidingLog }),
		wrong("an age of a penalty", func(c *corecounter.Check) bool { return c.Age > 0 && c.Penalty != nil }),
		counter("an unknown operation", func(c *corecounter.Check) bool { return c.Op > corecounter.OpReset }),
		wrong("any guard", func(c *corecounter.Check) bool { return c.Guard > 1 && c.Penalty == nil }),
		wrong("any violation", func(c *corecounter.Check) bool { return c.Guard == 1 && c.Penalty == nil }),
		wrong("boundaries in disorder", func(c *corecounter.Check) bool { return c.Bounds != nil && c.Limit.Calendar() != 0 }),
		wrong("boundaries of any limit", func(c *corecounter.Check) bool { return c.Bounds != nil && c.Limit.Calendar() == 0 }),
		wrong("any threshold", func(c *corecounter.Check) bool {
			return c.Penalty != nil && c.Penalty.Threshold > corecounter.ViolationsMax
		}),
		wrong("any multiplier", func(c *corecounter.Check) bool { return c.Penalty != nil && slices.Contains(c.Penalty.Multipliers, 0) }),
		{"accepts too few results", acceptSome(func(c []corecounter.Check, r []corecounter.Result) bool { return len(r) < len(c) })},
		{"calls a wrong number its own fault", func(m *Model, ctx context.Context, c []corecounter.Check, r []corecounter.Result) error {
			if err := m.Take(ctx, c, r); err != nil {
				return fmt.Errorf("%w: %w", corecounter.ErrUnavailable, err)
			}
			return nil
		}},
	}
}

func keyByLimit(_ *Model, c *corecounter.Check) { c.Key = append([]byte(c.Limit.String()), c.Key...) }

// roundDown converts a token bucket to the unit of the check's limit before the store does so, and
// rounds the missing tokens down instead of up.
func roundDown(m *Model, c *corecounter.Check) {
	unit, _, _ := c.Limit.Arithmetic()
	s, ok := m.counters[string(c.Key)]
	if ok && unit > 0 && s.State.Aux != unit && s.State.Used > 0 {
		s.State.Used = s.State.Used * unit / s.State.Aux
		s.State.Aux = unit
		m.counters[string(c.Key)] = s
	}
}

func shifted(_ *Model, now corecounter.Micros, _ []corecounter.Check) corecounter.Micros {
	return now + corecounter.Millisecond/2
}

func forgetAhead(by corecounter.Micros) func(m *Model, c *corecounter.Check) {
	return func(m *Model, c *corecounter.Check) {
		if m.counters[string(c.Key)].State.At > m.now+by {
			delete(m.counters, string(c.Key))
		}
	}
}

// monotonicClock changes the clock of a mutant. Its methods keep the clock from going back, or from
// going forward by more than 10 seconds at a time.
type monotonicClock struct{ last corecounter.Micros }

func (c *monotonicClock) never(_ *Model, now corecounter.Micros, _ []corecounter.Check) corecounter.Micros {
	c.last = max(c.last, now)
	return c.last
}

func (c *monotonicClock) slow(_ *Model, now corecounter.Micros, _ []corecounter.Check) corecounter.Micros {
	if c.last != 0 {
		now = min(now, c.last+10*corecounter.Second)
	}
	c.last = now
	return now
}

func roundWaits(grain, up corecounter.Micros) func(*corecounter.Check, *corecounter.Result) {
	return func(_ *corecounter.Check, r *corecounter.Result) {
		if r.Wait != corecounter.Never {
			r.Wait = (r.Wait + up*(grain-1)) / grain * grain
		}
	}
}

func chargeAnyway(m *Model, ctx context.Context, c []corecounter.Check, r []corecounter.Result) error {
	if err := m.Take(context.Background(), c, r); err != nil {
		return err
	}
	return ctx.Err()
}
