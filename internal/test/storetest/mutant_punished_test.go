// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"slices"

	corecounter "github.com/penstock/penstock/core/counter"
)

// prolonging implements a store that starts a penalty anew at each request that the penalty denies.
func prolonging(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	before := map[string]corecounter.Slot{}
	for i := range checks {
		before[string(checks[i].Key)] = m.slot(checks[i].Key)
	}
	err := m.Take(ctx, checks, results)
	for i := range checks {
		c := &checks[i]
		was := before[string(c.Key)]
		if s := m.slot(c.Key); err == nil && c.Penalty != nil && c.Op == corecounter.OpTake && was.State.At > m.now {
			s.State.At = m.now + 4*corecounter.Minute
			m.keep(c.Key, s)
		}
	}
	return err
}

func shorten(_ *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
	if c.Penalty != nil && r.Denied && s.State.At == r.At+r.Wait {
		s.State.At--
	}
}

// onlyGuarded makes a store ignore a penalty if no check of the call names it as its guard.
func onlyGuarded(_ *Model, checks []corecounter.Check) {
	for i := range checks {
		if checks[i].Penalty != nil && !slices.ContainsFunc(checks, func(c corecounter.Check) bool { return c.Guard == i+1 }) {
			checks[i].Op = corecounter.OpLook
		}
	}
}

// forgetForced makes a store treat forced charges as ordinary charges if the call has a penalty.
func forgetForced(_ *Model, checks []corecounter.Check) {
	if slices.ContainsFunc(checks, func(c corecounter.Check) bool { return c.Penalty != nil }) {
		for i := range checks {
			if checks[i].Op == corecounter.OpForce {
				checks[i].Op = corecounter.OpTake
			}
		}
	}
}

// countBlocked implements a store that records a violation for each request that a penalty denies.
func countBlocked(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return changeAllStates(func(m *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
		if c.Penalty != nil && c.Op == corecounter.OpTake && r.Denied {
			s.Violations = append(s.Violations, corecounter.Violation{At: m.now, Until: m.now + 1, ID: 99})
		}
	})(m, ctx, checks, results)
}

// counting is a store that treats each denial as a violation of its own, because it changes the
// violation IDs from call to call.
type counting struct{ calls int64 }

func (n *counting) take(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	n.calls++
	return changeEachCheck(func(_ *Model, c *corecounter.Check) {
		if c.Guard != 0 {
			c.Violation = n.calls*1000 + c.Violation
		}
	})(m, ctx, checks, results)
}

func sameViolation(_ *Model, checks []corecounter.Check) {
	for i := range checks {
		if checks[i].Guard != 0 {
			checks[i].Violation = 1
		}
	}
}

func shortViolations(_ *Model, c *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
	for i := range s.Violations {
		s.Violations[i].Until = min(s.Violations[i].Until, s.Violations[i].At+corecounter.Second)
	}
}

// newOnly implements a store that ignores a denial if its violation is already recorded.
func newOnly(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return changeChecks(func(m *Model, checks []corecounter.Check) {
		for i := range checks {
			c := &checks[i]
			if c.Guard == 0 {
				continue
			}
			known := m.slot(checks[c.Guard-1].Key).Violations
			if slices.ContainsFunc(known, func(v corecounter.Violation) bool { return v.ID == c.Violation && v.Until > m.now }) {
				c.Guard = 0
			}
		}
	})(m, ctx, checks, results)
}

func guardAll(_ *Model, checks []corecounter.Check) {
	guard := slices.IndexFunc(checks, func(c corecounter.Check) bool { return c.Penalty != nil })
	for i := range checks {
		if guard >= 0 && checks[i].Penalty == nil && checks[i].Guard == 0 {
			checks[i].Guard, checks[i].Violation = guard+1, 7
		}
	}
}

// unguard calls change for each check that names a guard.
func unguard(checks []corecounter.Check, change func(*corecounter.Check)) {
	for i := range checks {
		if checks[i].Guard != 0 {
			change(&checks[i])
		}
	}
}

// countNever implements a store that also records a violation if the cost exceeds the limit's
// capacity. It reduces such a cost to the capacity.
func countNever(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	return changeEachCheck(func(_ *Model, c *corecounter.Check) {
		if c.Guard != 0 && c.Op == corecounter.OpTake {
			c.Cost = min(c.Cost, c.Limit.Capacity())
		}
	})(m, ctx, checks, results)
}

func takeLooks(_ *Model, checks []corecounter.Check) {
	for i := range checks {
		if checks[i].Penalty != nil && checks[i].Op == corecounter.OpLook && len(checks) > 1 {
			checks[i].Op = corecounter.OpTake
		}
	}
}

func unguardBatches(_ *Model, checks []corecounter.Check) {
	unguard(checks, func(c *corecounter.Check) {
		if c.Op == corecounter.OpUpTo {
			c.Guard = 0
		}
	})
}

// forgetAll implements a store that drops all violations of a penalty as soon as the oldest has
// expired.
func forgetAll(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	for i := range checks {
		c := &checks[i]
		if s := m.slot(c.Key); c.Penalty != nil && len(s.Violations) > 0 && s.Violations[0].At <= m.now-c.Penalty.Window {
			s.Violations = nil
			m.keep(c.Key, s)
		}
	}
	return m.Take(ctx, checks, results)
}

// keepOldest makes a store drop the newest violation, not the oldest, if there are more than the
// maximum.
func keepOldest(m *Model, _ *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
	if n := len(s.Violations); n == corecounter.ViolationsMax {
		s.Violations = append(s.Violations[:n-1], corecounter.Violation{At: m.now, Until: m.now + corecounter.Minute, ID: 999})
	}
}

func keepFew(_ *Model, _ *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
	s.Violations = s.Violations[max(0, len(s.Violations)-500):]
}

// keepViolations returns a change that makes a reset end the penalty without dropping its
// violations.
func keepViolations() func(*Model, *corecounter.Check, *corecounter.Result, *corecounter.Slot) {
	last := map[string][]corecounter.Violation{}
	return func(_ *Model, c *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
		if c.Penalty != nil && c.Op == corecounter.OpReset {
			s.Violations = slices.Clone(last[string(c.Key)])
		}
		last[string(c.Key)] = slices.Clone(s.Violations)
	}
}

// liftAdmitted implements a store that ignores the resets of a call if the call is denied.
func liftAdmitted(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	before := make([]corecounter.Slot, len(checks))
	for i := range checks {
		before[i] = m.slot(checks[i].Key)
	}
	err := m.Take(ctx, checks, results)
	for i := range checks {
		if err == nil && checks[i].Op == corecounter.OpReset && slices.ContainsFunc(results, func(r corecounter.Result) bool { return r.Denied }) {
			m.keep(checks[i].Key, before[i])
			results[i].Granted = 0
			results[i].Remaining = 0
		}
	}
	return err
}

// changeAhead returns a store that wrongly changes a stored penalty that is ahead of the clock,
// before it checks the penalty.
func changeAhead(change func(s *corecounter.Slot, now corecounter.Micros)) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		for i := range checks {
			s := m.slot(checks[i].Key)
			last := len(s.Violations) - 1
			if checks[i].Penalty != nil && last >= 0 && s.Violations[last].At > m.now {
				change(&s, m.now)
				m.keep(checks[i].Key, s)
			}
		}
		return m.Take(ctx, checks, results)
	}
}

// waitForClock implements a store that keeps a penalty in force until its stored end. If the clock
// has gone back, this end can be farther ahead than any penalty may last.
func waitForClock(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	for i := range checks {
		if c := &checks[i]; c.Penalty != nil {
			if s := m.slot(c.Key); s.State.At > m.now+c.Penalty.Window {
				p := *c.Penalty
				p.Max = corecounter.PenaltyMax
				checks = slices.Clone(checks)
				checks[i].Penalty = &p
			}
		}
	}
	return m.Take(ctx, checks, results)
}
