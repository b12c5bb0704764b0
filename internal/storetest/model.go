// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/penstock/penstock/core"
)

// Model is the store that the others are compared with: [core.Decide] over a map, nothing clever. It forgets nothing.
// The zero Model is ready to use; its clock stands at 0 until Pin. It is safe for concurrent use.
type Model struct {
	mu       sync.Mutex
	now      core.Micros
	counters map[string]core.Slot
	wrote    map[string]bool // the keys that the last call kept something for
}

var _ core.Store = (*Model)(nil)

// Pin sets the clock.
func (m *Model) Pin(now core.Micros) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// Take implements [core.Store].
func (m *Model) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	}
	if err := validate(checks, results); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := stale(checks, m.now); err != nil {
		return err
	}
	slots := make([]core.Slot, len(checks))
	for i := range checks {
		slots[i] = m.slot(checks[i].Key)
	}
	core.Decide(m.now, checks, slots, results[:len(checks)])
	clear(m.wrote)
	for i := range checks {
		if slots[i].Write {
			m.keep(checks[i].Key, slots[i])
		}
	}
	return nil
}

// slot returns a copy of what is kept for key.
func (m *Model) slot(key []byte) core.Slot {
	s := m.counters[string(key)]
	s.Marks, s.Violations = slices.Clone(s.Marks), slices.Clone(s.Violations)
	return s
}

func (m *Model) keep(key []byte, s core.Slot) {
	if m.counters == nil {
		m.counters, m.wrote = map[string]core.Slot{}, map[string]bool{}
	}
	m.counters[string(key)], m.wrote[string(key)] = s, true
}

// Counter returns a copy of what is kept for key.
func (m *Model) Counter(_ testing.TB, key []byte, _ *core.Limit) (core.State, []core.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slot(key)
	return s.State, s.Marks
}

// Penalty returns a copy of what is kept of the penalty at key.
func (m *Model) Penalty(_ testing.TB, key []byte) (until core.Micros, violations []core.Violation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slot(key)
	return s.State.At, s.Violations
}

// Subject returns the model as a store under exam.
func (m *Model) Subject() Subject {
	return Subject{Store: m, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty}
}

// stale returns the error of a call whose boundaries do not hold the instant.
func stale(checks []core.Check, now core.Micros) error {
	for i := range checks {
		if b := checks[i].Bounds; b != nil && (now < b[0] || now >= b[3]) {
			return fmt.Errorf("%w: %w: check %d", core.ErrUnavailable, core.ErrStale, i)
		}
	}
	return nil
}

func validate(checks []core.Check, results []core.Result) error {
	switch {
	case len(checks) > core.ChecksMax:
		return fmt.Errorf("%w: %d checks, at most %d", core.ErrInvalid, len(checks), core.ChecksMax)
	case len(results) < len(checks):
		return fmt.Errorf("%w: room for %d results of %d checks", core.ErrInvalid, len(results), len(checks))
	}
	for i := range checks {
		if !valid(&checks[i]) || !guardStands(checks, i) {
			return fmt.Errorf("%w: check %d is out of bounds", core.ErrInvalid, i)
		}
		for j := range i {
			if string(checks[i].Key) == string(checks[j].Key) {
				return fmt.Errorf("%w: checks %d and %d have the key %q", core.ErrInvalid, j, i, checks[i].Key)
			}
		}
	}
	return nil
}

func valid(c *core.Check) bool {
	if c.Penalty != nil {
		return c.Limit == nil && c.Bounds == nil && c.Guard == 0 && c.Cost == 0 && c.Age == 0 && penaltyStands(c.Penalty) &&
			(c.Op == core.OpTake || c.Op == core.OpLook || c.Op == core.OpReset)
	}
	if c.Limit == nil || c.Limit.Count() == 0 || c.Op > core.OpReset || c.Cost < 0 || c.Cost > core.CountMax+1 {
		return false
	}
	if (c.Bounds != nil) != (c.Limit.Calendar() != 0) {
		return false
	}
	if b := c.Bounds; b != nil && (b[0] <= 0 || b[1] <= b[0] || b[2] <= b[1] || b[3] <= b[2]) {
		return false
	}
	if c.Age < 0 || c.Age > c.Limit.Window() || c.Age > 0 && (c.Limit.Algorithm() == core.SlidingLog ||
		c.Op != core.OpUpTo && c.Op != core.OpGiveBack) {
		return false
	}
	return c.Op != core.OpUpTo ||
		c.Min >= 1 && c.Min <= max(1, c.Cost) && c.Max >= c.Cost && c.ShareMille >= 0 && c.ShareMille <= 1000
}

// penaltyStands reports whether the numbers of a penalty say something.
func penaltyStands(p *core.Penalty) bool {
	for _, m := range p.Multipliers {
		if m < 1 || m > core.MultiplierMax {
			return false
		}
	}
	return p.Window > 0 && p.Window <= core.PenaltyMax && p.Max >= 0 && p.Max <= core.PenaltyMax && p.Threshold >= 1 &&
		p.Threshold <= core.ViolationsMax && len(p.Multipliers) > 0 && len(p.Multipliers) <= core.MultipliersMax
}

// guardStands reports whether a check names no guard, or the check of a penalty and a violation.
func guardStands(checks []core.Check, i int) bool {
	c := &checks[i]
	if c.Guard == 0 {
		return true
	}
	return c.Guard > 0 && c.Guard <= len(checks) && checks[c.Guard-1].Penalty != nil &&
		c.Violation >= 1 && c.Violation <= core.ViolationMax
}
