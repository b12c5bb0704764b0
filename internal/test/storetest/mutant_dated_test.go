// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corecounter "github.com/penstock/penstock/core/counter"
)

// datedMutants holds, for each promise about calendar windows, penalties and resets, stores that
// break it on purpose.
var datedMutants = map[string][]mutant{
	"a calendar window is the zone's": {
		{"counts days of 24 hours", changeEachCheck(evenBounds)},
		{"counts in UTC", changeEachCheck(utcBounds)},
		{"ends a microsecond late", changeEachCheck(shiftBounds(1))},
		{"ends a second early", changeEachCheck(shiftBounds(-corecounter.Second))}},
	"the store's clock says which period it is": {{"believes the caller", useCallersPeriod}},
	"stale boundaries are no answer": {
		{"counts in the nearest period", unstale(func(error) error { return nil })},
		{"does not say stale", unstale(func(error) error { return corecounter.ErrUnavailable })},
		{"does not say unavailable", unstale(func(error) error { return corecounter.ErrStale })},
		{"calls it the caller's mistake", unstale(func(err error) error { return fmt.Errorf("%w: %w", err, corecounter.ErrInvalid) })},
		{"charges the rest of the call", chargeTheRest},
		{"hears a caller a microsecond longer", lateStale}},
	"a clock back over a boundary goes on": {
		{"starts again when the clock goes back", changeEachCheck(forgetAhead(0))},
		{"starts again when the clock goes far back", changeEachCheck(forgetAhead(15 * corecounter.Day))},
		{"never corrects a clock", changeClock((&monotonicClock{}).never)}},
	"yesterday's receipt buys nothing today": {{"credits the period of now", changeEachCheck(creditBounds)}},
	"a changed zone keeps the day":           {{"forgets what began at another instant", changeEachCheck(forgetOtherZone)}},

	"a penalty grows with the violations": {
		{"punishes one violation early", eachPenalty(func(p *corecounter.Penalty) { p.Threshold = max(1, p.Threshold-1) })},
		{"punishes one violation late", eachPenalty(func(p *corecounter.Penalty) { p.Threshold = min(corecounter.ViolationsMax, p.Threshold+1) })},
		{"has one multiplier", eachPenalty(func(p *corecounter.Penalty) { p.Multipliers = p.Multipliers[:1] })},
		{"skips the first multiplier", eachPenalty(func(p *corecounter.Penalty) { p.Multipliers = p.Multipliers[min(1, len(p.Multipliers)-1):] })},
		{"has no longest penalty", eachPenalty(func(p *corecounter.Penalty) { p.Max = corecounter.PenaltyMax })},
		{"ignores what is said of the longest", eachPenalty(func(p *corecounter.Penalty) { p.Max = 0 })}},
	"a penalty lasts as long as it says": {
		{"prolongs it at each refusal", prolonging},
		{"ends it a microsecond early", changeAllStates(shorten)},
		{"admits who asks for other limits", changeChecks(onlyGuarded)},
		{"forgets what is forced beside it", changeChecks(forgetForced)},
		{"counts its refusals", countBlocked}},
	"one violation until its wait is over": {
		{"counts every refusal", (&counting{}).take},
		{"counts one for a call", changeChecks(sameViolation)},
		{"counts again before the wait is over", changeAllStates(shortViolations)}},
	"the longest wait is multiplied": {{"takes the wait of what is new", newOnly}},
	"no violation of the client's": {
		{"counts limits without a guard", changeChecks(guardAll)},
		{"counts what is only tried", changeChecks(func(_ *Model, c []corecounter.Check) { unguard(c, func(k *corecounter.Check) { k.Shadow = false }) })},
		{"counts looks", changeChecks(func(_ *Model, c []corecounter.Check) {
			unguard(c, func(k *corecounter.Check) {
				if k.Op == corecounter.OpLook {
					k.Op = corecounter.OpTake
				}
			})
		})},
		{"counts what can never pass", countNever},
		{"counts for a look at a penalty", changeChecks(takeLooks)},
		{"counts batches as none", changeChecks(unguardBatches)}},
	"violations decay": {
		{"remembers for twice as long", eachPenalty(func(p *corecounter.Penalty) { p.Window *= 2 })},
		{"remembers a microsecond less", eachPenalty(func(p *corecounter.Penalty) { p.Window-- })},
		{"forgets all when one is over", forgetAll}},
	"a thousand violations are remembered": {{"remembers the oldest", changeAllStates(keepOldest)}, {"remembers 500", changeAllStates(keepFew)}},
	"a penalty can be lifted": {
		{"lifts the penalty and keeps the violations", changeAllStates(keepViolations())},
		{"does not say what was lifted", changeAllAnswers(func(c *corecounter.Check, r *corecounter.Result) {
			if c.Op == corecounter.OpReset {
				r.Granted = 0
			}
		})},
		{"lifts in admitted calls only", liftAdmitted}},
	"a penalty survives a wrong clock": {
		{"lifts a penalty that is ahead", changeAhead(func(s *corecounter.Slot, now corecounter.Micros) { s.State.At = 0 })},
		{"forgets violations that are ahead", changeAhead(func(s *corecounter.Slot, now corecounter.Micros) {
			s.Violations = slices.DeleteFunc(s.Violations, func(v corecounter.Violation) bool { return v.At > now })
		})},
		{"waits for the clock", waitForClock}},
	"hammered, every violation": {{"reads, and writes a moment later", gap}},
	"a reset forgets": {
		{"does not reset", changeEachCheck(func(_ *Model, c *corecounter.Check) {
			if c.Op == corecounter.OpReset {
				c.Op = corecounter.OpLook
			}
		})},
		{"does not say what was forgotten", changeAnswers(func(c *corecounter.Check, r *corecounter.Result) {
			if c.Op == corecounter.OpReset {
				r.Granted = 0
			}
		})},
		{"resets in admitted calls only", liftAdmitted}},
}

func init() {
	for promise, list := range datedMutants {
		mutants[promise] = list
	}
}

func evenBounds(_ *Model, c *corecounter.Check) {
	if c.Bounds != nil {
		b := *c.Bounds
		length := map[corecounter.CalendarUnit]corecounter.Micros{corecounter.CalendarDay: corecounter.Day, corecounter.CalendarWeek: 7 * corecounter.Day,
			corecounter.CalendarMonth: 30 * corecounter.Day, corecounter.CalendarYear: 365 * corecounter.Day}[c.Limit.Calendar()]
		c.Bounds = &corecounter.Bounds{b[0], b[0] + length, b[0] + 2*length, b[0] + 3*length}
	}
}

func utcBounds(m *Model, c *corecounter.Check) {
	if c.Bounds != nil {
		*c = (&calendar{unit: c.Limit.Calendar().String(), zone: time.UTC}).dated(*c, m.now)
	}
}

func shiftBounds(by corecounter.Micros) func(*Model, *corecounter.Check) {
	return func(_ *Model, c *corecounter.Check) {
		if c.Bounds != nil {
			b := *c.Bounds
			c.Bounds = &corecounter.Bounds{b[0] - corecounter.Second, b[1] + by, b[2] + by, b[3] + by}
		}
	}
}

// useCallersPeriod implements a store that ignores its own clock at a calendar boundary. It counts
// in the period that the caller's boundaries call the present one.
func useCallersPeriod(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return changeClock(func(_ *Model, now corecounter.Micros, checks []corecounter.Check) corecounter.Micros {
		for i := range checks {
			if b := checks[i].Bounds; b != nil && now >= b[1] && now < b[3] {
				now = b[1] - 1
			}
		}
		return now
	})(m, ctx, checks, results)
}

// unstale returns a store that handles the error of a stale call in a wrong way. It passes the
// error to change. If change returns nil, the store answers the call as if the boundaries were
// right. Otherwise it returns the error that change returns.
func unstale(change func(error) error) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		err := m.Take(ctx, checks, results)
		if !errors.Is(err, corecounter.ErrStale) {
			return err
		}
		if err = change(err); err == nil {
			return trusting(m, checks, results)
		}
		return err
	}
}

// chargeTheRest implements a store that does not reject a whole call if some of its checks are
// stale, but executes the other checks.
func chargeTheRest(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	err := m.Take(ctx, checks, results)
	if errors.Is(err, corecounter.ErrStale) {
		for i := range checks {
			_ = m.Take(ctx, checks[i:i+1], results[i:i+1])
		}
	}
	return err
}

func lateStale(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return changeClock(func(_ *Model, now corecounter.Micros, checks []corecounter.Check) corecounter.Micros {
		for i := range checks {
			if b := checks[i].Bounds; b != nil && now == b[3] {
				now--
			}
		}
		return now
	})(m, ctx, checks, results)
}

func creditBounds(m *Model, c *corecounter.Check) {
	for i := range 3 {
		if b := c.Bounds; b != nil && c.Op == corecounter.OpRefund && b[i] <= m.now {
			c.Receipt = b[i]
		}
	}
}

func forgetOtherZone(m *Model, c *corecounter.Check) {
	if b := c.Bounds; b != nil && !slices.Contains(b[:], m.counters[string(c.Key)].State.At) {
		delete(m.counters, string(c.Key))
	}
}
