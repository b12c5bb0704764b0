// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	corecounter "github.com/penstock/penstock/core/counter"
)

// changeChecks returns a mutant that changes the checks of a call before it passes them to the
// model.
func changeChecks(change func(m *Model, checks []corecounter.Check)) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		checks = slices.Clone(checks)
		for i := range checks {
			if checks[i].Penalty == nil && (checks[i].Limit == nil || checks[i].Limit.Count() == 0) {
				return corecounter.ErrInvalid
			}
		}
		change(m, checks)
		return m.Take(ctx, checks, results)
	}
}

// changeEachCheck is like changeChecks, but calls change for one check at a time, and not for
// checks of penalties.
func changeEachCheck(change func(m *Model, c *corecounter.Check)) takeFunc {
	return changeChecks(func(m *Model, checks []corecounter.Check) {
		for i := range checks {
			if checks[i].Penalty == nil {
				change(m, &checks[i])
			}
		}
	})
}

// eachPenalty returns a mutant that changes the penalty of each check before it passes the checks
// to the model.
func eachPenalty(change func(p *corecounter.Penalty)) takeFunc {
	return changeChecks(func(_ *Model, checks []corecounter.Check) {
		for i := range checks {
			if checks[i].Penalty != nil {
				p := *checks[i].Penalty
				change(&p)
				checks[i].Penalty = &p
			}
		}
	})
}

// changeAnswers returns a mutant that changes the results of the model, except for checks of
// penalties.
func changeAnswers(change func(c *corecounter.Check, r *corecounter.Result)) takeFunc {
	return changeAllAnswers(func(c *corecounter.Check, r *corecounter.Result) {
		if c.Penalty == nil {
			change(c, r)
		}
	})
}

// changeAllAnswers is like changeAnswers, but also changes the results for checks of penalties.
func changeAllAnswers(change func(c *corecounter.Check, r *corecounter.Result)) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		err := m.Take(ctx, checks, results)
		for i := range checks {
			if err == nil {
				change(&checks[i], &results[i])
			}
		}
		return err
	}
}

// changeStates returns a mutant that decides like the model, but then changes the stored counters.
func changeStates(change func(m *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot)) takeFunc {
	return changeAllStates(func(m *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
		if c.Penalty == nil {
			change(m, c, r, s)
		}
	})
}

// changeAllStates is like changeStates, but also changes the stored penalties.
func changeAllStates(change func(m *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot)) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		err := m.Take(ctx, checks, results)
		m.mu.Lock()
		defer m.mu.Unlock()
		for i := range checks {
			if err == nil {
				s := m.slot(checks[i].Key)
				change(m, &checks[i], &results[i], &s)
				m.keep(checks[i].Key, s)
			}
		}
		return err
	}
}

// changeClock returns a mutant that decides at another time than the one its clock was set to.
func changeClock(now func(m *Model, now corecounter.Micros, checks []corecounter.Check) corecounter.Micros) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		true := m.now
		m.now = now(m, true, checks)
		defer func() { m.now = true }()
		err := m.Take(ctx, checks, results)
		for i := range results {
			results[i].At = true
		}
		return err
	}
}

// trusting implements a mutant that does not validate its checks.
func trusting(m *Model, checks []corecounter.Check, results []corecounter.Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	slots := make([]corecounter.Slot, len(checks))
	for i := range checks {
		slots[i] = m.slot(checks[i].Key)
	}
	corecounter.Decide(m.now, checks, slots, results[:len(checks)])
	for i := range checks {
		m.keep(checks[i].Key, slots[i])
	}
	return nil
}

// gap implements a mutant that releases its lock between reading the counters and writing them.
func gap(m *Model, _ context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	slots := make([]corecounter.Slot, len(checks))
	m.mu.Lock()
	for i := range checks {
		slots[i] = m.slot(checks[i].Key)
	}
	m.mu.Unlock()
	for range 20 {
		runtime.Gosched()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	corecounter.Decide(m.now, checks, slots, results)
	for i := range checks {
		if slots[i].Write {
			m.keep(checks[i].Key, slots[i])
		}
	}
	return nil
}

// crossingMutant is a mutant that locks the keys of a call one after the other, in the order of the
// checks, so overlapping calls can block each other.
type crossingMutant struct{ held map[string]bool }

func (x *crossingMutant) take(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	for i := range checks {
		for {
			m.mu.Lock()
			free := !x.held[string(checks[i].Key)]
			if free {
				x.held[string(checks[i].Key)] = true
			}
			m.mu.Unlock()
			if free {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%w: deadlock", corecounter.ErrUnavailable)
			}
			runtime.Gosched()
		}
		runtime.Gosched()
	}
	err := m.Take(ctx, checks, results)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range checks {
		delete(x.held, string(checks[i].Key))
	}
	return err
}

// aliasing implements a mutant that keeps the caller's byte slice as the key, although the caller
// may change the slice afterwards.
func aliasing(m *Model, _ context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counters == nil {
		m.counters = map[string]corecounter.Slot{}
	}
	for i := range checks {
		key := unsafe.String(&checks[i].Key[0], len(checks[i].Key))
		slots := []corecounter.Slot{m.counters[key]}
		corecounter.Decide(m.now, checks[i:i+1], slots, results[i:i+1])
		if slots[0].Write {
			m.counters[key] = slots[0]
		}
	}
	return nil
}

// apart implements a mutant that executes each check as if it were a call of its own.
func apart(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	for i := range checks {
		if err := m.Take(ctx, checks[i:i+1], results[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// leaky implements a mutant that leaves values of the previous call in the caller's results where
// the new values are zero.
func leaky(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	was := slices.Clone(results)
	err := m.Take(ctx, checks, results)
	for i := range checks {
		if err == nil && results[i].Receipt == 0 {
			results[i].Receipt = was[i].Receipt
		}
	}
	return err
}

// leavingViolations implements a mutant that leaves the Violations of the previous call in the
// caller's results, except for checks of penalties.
func leavingViolations(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	was := slices.Clone(results)
	err := m.Take(ctx, checks, results)
	for i := range checks {
		if checks[i].Penalty == nil {
			results[i].Violations = was[i].Violations
		}
	}
	return err
}

// acceptSome returns a mutant that accepts those invalid calls for which accepts returns true.
func acceptSome(accepts func(checks []corecounter.Check, results []corecounter.Result) bool) takeFunc {
	return func(m *Model, ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
		err := m.Take(ctx, checks, results)
		if errors.Is(err, corecounter.ErrInvalid) && accepts(checks, results) {
			return trusting(m, checks, append(results, make([]corecounter.Result, len(checks))...))
		}
		return err
	}
}

func renamed(name func(string) string) takeFunc {
	return changeEachCheck(func(_ *Model, c *corecounter.Check) { c.Key = []byte(name(string(c.Key))) })
}

func truncated(at int) func(string) string {
	return func(key string) string { return key[:min(len(key), at)] }
}

func untilNUL(key string) string {
	before, _, _ := strings.Cut(key, "\x00")
	return before
}
