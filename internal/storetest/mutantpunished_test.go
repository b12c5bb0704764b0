// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"slices"

	"github.com/penstock/penstock/core"
)

// prolonging begins a penalty anew at each request that it refuses.
func prolonging(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	before := map[string]core.Slot{}
	for i := range checks {
		before[string(checks[i].Key)] = m.slot(checks[i].Key)
	}
	err := m.Take(ctx, checks, results)
	for i := range checks {
		c := &checks[i]
		was := before[string(c.Key)]
		if s := m.slot(c.Key); err == nil && c.Penalty != nil && c.Op == core.OpTake && was.State.At > m.now {
			s.State.At = m.now + 4*core.Minute
			m.keep(c.Key, s)
		}
	}
	return err
}

func shorten(_ *Model, c *core.Check, r *core.Result, s *core.Slot) {
	if c.Penalty != nil && r.Refused && s.State.At == r.At+r.Wait {
		s.State.At--
	}
}

// onlyGuarded asks penalties only where a limit is guarded by them.
func onlyGuarded(_ *Model, checks []core.Check) {
	for i := range checks {
		if checks[i].Penalty != nil && !slices.ContainsFunc(checks, func(c core.Check) bool { return c.Guard == i+1 }) {
			checks[i].Op = core.OpLook
		}
	}
}

// forgetForced records nothing beside a penalty.
func forgetForced(_ *Model, checks []core.Check) {
	if slices.ContainsFunc(checks, func(c core.Check) bool { return c.Penalty != nil }) {
		for i := range checks {
			if checks[i].Op == core.OpForce {
				checks[i].Op = core.OpTake
			}
		}
	}
}

// countBlocked remembers a violation for each request that a penalty refuses.
func countBlocked(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	return keepingAll(func(m *Model, c *core.Check, r *core.Result, s *core.Slot) {
		if c.Penalty != nil && c.Op == core.OpTake && r.Refused {
			s.Violations = append(s.Violations, core.Violation{At: m.now, Until: m.now + 1, ID: 99})
		}
	})(m, ctx, checks, results)
}

// counting gives every refusal a number of its own.
type counting struct{ calls int64 }

func (n *counting) take(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	n.calls++
	return eachAsked(func(_ *Model, c *core.Check) {
		if c.Guard != 0 {
			c.Violation = n.calls*1000 + c.Violation
		}
	})(m, ctx, checks, results)
}

func sameViolation(_ *Model, checks []core.Check) {
	for i := range checks {
		if checks[i].Guard != 0 {
			checks[i].Violation = 1
		}
	}
}

func shortViolations(_ *Model, c *core.Check, _ *core.Result, s *core.Slot) {
	for i := range s.Violations {
		s.Violations[i].Until = min(s.Violations[i].Until, s.Violations[i].At+core.Second)
	}
}

// newOnly takes the guard from violations that are known.
func newOnly(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	return asking(func(m *Model, checks []core.Check) {
		for i := range checks {
			c := &checks[i]
			if c.Guard == 0 {
				continue
			}
			known := m.slot(checks[c.Guard-1].Key).Violations
			if slices.ContainsFunc(known, func(v core.Violation) bool { return v.ID == c.Violation && v.Until > m.now }) {
				c.Guard = 0
			}
		}
	})(m, ctx, checks, results)
}

func guardAll(_ *Model, checks []core.Check) {
	guard := slices.IndexFunc(checks, func(c core.Check) bool { return c.Penalty != nil })
	for i := range checks {
		if guard >= 0 && checks[i].Penalty == nil && checks[i].Guard == 0 {
			checks[i].Guard, checks[i].Violation = guard+1, 7
		}
	}
}

// unguard changes the guarded checks.
func unguard(checks []core.Check, change func(*core.Check)) {
	for i := range checks {
		if checks[i].Guard != 0 {
			change(&checks[i])
		}
	}
}

// countNever asks for what can pass where the client asks for more.
func countNever(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	return eachAsked(func(_ *Model, c *core.Check) {
		if c.Guard != 0 && c.Op == core.OpTake {
			c.Cost = min(c.Cost, c.Limit.Capacity())
		}
	})(m, ctx, checks, results)
}

func takeLooks(_ *Model, checks []core.Check) {
	for i := range checks {
		if checks[i].Penalty != nil && checks[i].Op == core.OpLook && len(checks) > 1 {
			checks[i].Op = core.OpTake
		}
	}
}

func unguardBatches(_ *Model, checks []core.Check) {
	unguard(checks, func(c *core.Check) {
		if c.Op == core.OpUpTo {
			c.Guard = 0
		}
	})
}

// forgetAll forgets every violation as soon as the oldest is over.
func forgetAll(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	for i := range checks {
		c := &checks[i]
		if s := m.slot(c.Key); c.Penalty != nil && len(s.Violations) > 0 && s.Violations[0].At <= m.now-c.Penalty.Window {
			s.Violations = nil
			m.keep(c.Key, s)
		}
	}
	return m.Take(ctx, checks, results)
}

// keepOldest has as many as there may be, but none of the last call.
func keepOldest(m *Model, _ *core.Check, _ *core.Result, s *core.Slot) {
	if n := len(s.Violations); n == core.ViolationsMax {
		s.Violations = append(s.Violations[:n-1], core.Violation{At: m.now, Until: m.now + core.Minute, ID: 999})
	}
}

func keepFew(_ *Model, _ *core.Check, _ *core.Result, s *core.Slot) {
	s.Violations = s.Violations[max(0, len(s.Violations)-500):]
}

// keepViolations lifts no more than the penalty itself.
func keepViolations() func(*Model, *core.Check, *core.Result, *core.Slot) {
	last := map[string][]core.Violation{}
	return func(_ *Model, c *core.Check, _ *core.Result, s *core.Slot) {
		if c.Penalty != nil && c.Op == core.OpReset {
			s.Violations = slices.Clone(last[string(c.Key)])
		}
		last[string(c.Key)] = slices.Clone(s.Violations)
	}
}

// liftAdmitted resets nothing in a call that is refused.
func liftAdmitted(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	before := make([]core.Slot, len(checks))
	for i := range checks {
		before[i] = m.slot(checks[i].Key)
	}
	err := m.Take(ctx, checks, results)
	for i := range checks {
		if err == nil && checks[i].Op == core.OpReset && slices.ContainsFunc(results, func(r core.Result) bool { return r.Refused }) {
			m.keep(checks[i].Key, before[i])
			results[i].Granted = 0
			results[i].Remaining = 0
		}
	}
	return err
}

// keepingAhead changes what is kept of a penalty that is ahead of the clock, before it is asked.
func keepingAhead(change func(s *core.Slot, now core.Micros)) takeFunc {
	return func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
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

// waitForClock keeps a penalty until its own instant, however far ahead that is.
func waitForClock(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	for i := range checks {
		if c := &checks[i]; c.Penalty != nil {
			if s := m.slot(c.Key); s.State.At > m.now+c.Penalty.Window {
				p := *c.Penalty
				p.Max = core.PenaltyMax
				checks = slices.Clone(checks)
				checks[i].Penalty = &p
			}
		}
	}
	return m.Take(ctx, checks, results)
}
