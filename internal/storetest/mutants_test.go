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

	"github.com/penstock/penstock/core"
)

// asking returns a mutant that asks the model something else than it was asked.
func asking(change func(m *Model, checks []core.Check)) takeFunc {
	return func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
		checks = slices.Clone(checks)
		for i := range checks {
			if checks[i].Penalty == nil && (checks[i].Limit == nil || checks[i].Limit.Count() == 0) {
				return core.ErrInvalid
			}
		}
		change(m, checks)
		return m.Take(ctx, checks, results)
	}
}

// eachAsked is asking, check by check, but for those of penalties.
func eachAsked(change func(m *Model, c *core.Check)) takeFunc {
	return asking(func(m *Model, checks []core.Check) {
		for i := range checks {
			if checks[i].Penalty == nil {
				change(m, &checks[i])
			}
		}
	})
}

// eachPenalty is asking, by a changed penalty.
func eachPenalty(change func(p *core.Penalty)) takeFunc {
	return asking(func(_ *Model, checks []core.Check) {
		for i := range checks {
			if checks[i].Penalty != nil {
				p := *checks[i].Penalty
				change(&p)
				checks[i].Penalty = &p
			}
		}
	})
}

// answering returns a mutant that answers something else than the model.
func answering(change func(c *core.Check, r *core.Result)) takeFunc {
	return answeringAll(func(c *core.Check, r *core.Result) {
		if c.Penalty == nil {
			change(c, r)
		}
	})
}

// answeringAll is answering, the checks of penalties too.
func answeringAll(change func(c *core.Check, r *core.Result)) takeFunc {
	return func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
		err := m.Take(ctx, checks, results)
		for i := range checks {
			if err == nil {
				change(&checks[i], &results[i])
			}
		}
		return err
	}
}

// keeping returns a mutant that decides like the model and keeps something else of counters.
func keeping(change func(m *Model, c *core.Check, r *core.Result, s *core.Slot)) takeFunc {
	return keepingAll(func(m *Model, c *core.Check, r *core.Result, s *core.Slot) {
		if c.Penalty == nil {
			change(m, c, r, s)
		}
	})
}

// keepingAll is keeping, of penalties too.
func keepingAll(change func(m *Model, c *core.Check, r *core.Result, s *core.Slot)) takeFunc {
	return func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
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

// dating returns a mutant whose clock says something else.
func dating(now func(m *Model, now core.Micros, checks []core.Check) core.Micros) takeFunc {
	return func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
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

// trusting is a mutant that does not look at what it is asked.
func trusting(m *Model, checks []core.Check, results []core.Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	slots := make([]core.Slot, len(checks))
	for i := range checks {
		slots[i] = m.slot(checks[i].Key)
	}
	core.Decide(m.now, checks, slots, results[:len(checks)])
	for i := range checks {
		m.keep(checks[i].Key, slots[i])
	}
	return nil
}

// gap is a mutant that others can come into between reading and writing.
func gap(m *Model, _ context.Context, checks []core.Check, results []core.Result) error {
	slots := make([]core.Slot, len(checks))
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
	core.Decide(m.now, checks, slots, results)
	for i := range checks {
		if slots[i].Write {
			m.keep(checks[i].Key, slots[i])
		}
	}
	return nil
}

// crossing is a mutant that locks one key after the other in the order of the call, and waits for the next.
type crossing struct{ held map[string]bool }

func (x *crossing) take(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
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
				return fmt.Errorf("%w: deadlock", core.ErrUnavailable)
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

// aliasing is a mutant that keeps the caller's bytes as the key.
func aliasing(m *Model, _ context.Context, checks []core.Check, results []core.Result) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.counters == nil {
		m.counters = map[string]core.Slot{}
	}
	for i := range checks {
		key := unsafe.String(&checks[i].Key[0], len(checks[i].Key))
		slots := []core.Slot{m.counters[key]}
		core.Decide(m.now, checks[i:i+1], slots, results[i:i+1])
		if slots[0].Write {
			m.counters[key] = slots[0]
		}
	}
	return nil
}

// apart is a mutant that takes the checks one by one.
func apart(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	for i := range checks {
		if err := m.Take(ctx, checks[i:i+1], results[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

// leaky is a mutant that does not write what is zero.
func leaky(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	was := slices.Clone(results)
	err := m.Take(ctx, checks, results)
	for i := range checks {
		if err == nil && results[i].Receipt == 0 {
			results[i].Receipt = was[i].Receipt
		}
	}
	return err
}

// leavingViolations is a mutant that writes violations only where there can be some.
func leavingViolations(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
	was := slices.Clone(results)
	err := m.Take(ctx, checks, results)
	for i := range checks {
		if checks[i].Penalty == nil {
			results[i].Violations = was[i].Violations
		}
	}
	return err
}

// unchecked is a mutant that accepts some wrong calls.
func unchecked(accepts func(checks []core.Check, results []core.Result) bool) takeFunc {
	return func(m *Model, ctx context.Context, checks []core.Check, results []core.Result) error {
		err := m.Take(ctx, checks, results)
		if errors.Is(err, core.ErrInvalid) && accepts(checks, results) {
			return trusting(m, checks, append(results, make([]core.Result, len(checks))...))
		}
		return err
	}
}

func renamed(name func(string) string) takeFunc {
	return eachAsked(func(_ *Model, c *core.Check) { c.Key = []byte(name(string(c.Key))) })
}

func truncated(at int) func(string) string {
	return func(key string) string { return key[:min(len(key), at)] }
}

func untilNUL(key string) string {
	before, _, _ := strings.Cut(key, "\x00")
	return before
}
