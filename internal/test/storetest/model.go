// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	corecounter "github.com/penstock/penstock/core/counter"
)

// Model is the reference store, which applies [counter.Decide] to the counters in a map. It never
// drops a counter. The zero Model is ready to use. Its clock stands at 0 until Pin is called. A
// Model is safe for concurrent use.
type Model struct {
	mu       sync.Mutex
	now      corecounter.Micros
	counters map[string]corecounter.Slot
	wrote    map[string]bool // the keys that the last call wrote
}

var _ corecounter.Store = (*Model)(nil)

// Pin sets the model's clock to the given instant.
func (m *Model) Pin(now corecounter.Micros) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
}

// Take implements [counter.Store].
func (m *Model) Take(ctx context.Context, checks []corecounter.Check, results []corecounter.Result) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", corecounter.ErrUnavailable, err)
	}
	if err := validate(checks, results); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := checkBoundaries(checks, m.now); err != nil {
		return err
	}
	slots := make([]corecounter.Slot, len(checks))
	for i := range checks {
		slots[i] = m.slot(checks[i].Key)
	}
	corecounter.Decide(m.now, checks, slots, results[:len(checks)])
	clear(m.wrote)
	for i := range checks {
		if slots[i].Write {
			m.keep(checks[i].Key, slots[i])
		}
	}
	return nil
}

// Model.slot returns a copy of the state that is stored under the key.
func (m *Model) slot(key []byte) corecounter.Slot {
	s := m.counters[string(key)]
	s.Marks, s.Violations = slices.Clone(s.Marks), slices.Clone(s.Violations)
	return s
}

func (m *Model) keep(key []byte, s corecounter.Slot) {
	if m.counters == nil {
		m.counters, m.wrote = map[string]corecounter.Slot{}, map[string]bool{}
	}
	m.counters[string(key)], m.wrote[string(key)] = s, true
}

// Counter returns a copy of the state that is stored under the key.
func (m *Model) Counter(_ testing.TB, key []byte, _ *corecounter.Limit) (corecounter.State, []corecounter.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slot(key)
	return s.State, s.Marks
}

// Penalty returns a copy of the penalty that is stored under the key.
func (m *Model) Penalty(_ testing.TB, key []byte) (until corecounter.Micros, violations []corecounter.Violation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slot(key)
	return s.State.At, s.Violations
}

// Subject returns the model as the subject of an exam.
func (m *Model) Subject() Subject {
	return Subject{Store: m, Pin: m.Pin, Counter: m.Counter, Penalty: m.Penalty}
}

// checkBoundaries returns an error if the boundaries of a check do not contain now.
func checkBoundaries(checks []corecounter.Check, now corecounter.Micros) error {
	for i := range checks {
		if b := checks[i].Bounds; b != nil && (now < b[0] || now >= b[3]) {
			return fmt.Errorf("%w: %w: check %d", corecounter.ErrUnavailable, corecounter.ErrStale, i)
		}
	}
	return nil
}

func validate(checks []corecounter.Check, results []corecounter.Result) error {
	switch {
	case len(checks) > corecounter.ChecksMax:
		return fmt.Errorf("%w: %d checks, at most %d", corecounter.ErrInvalid, len(checks), corecounter.ChecksMax)
	case len(results) < len(checks):
		return fmt.Errorf("%w: room for %d results of %d checks", corecounter.ErrInvalid, len(results), len(checks))
	}
	for i := range checks {
		if !valid(&checks[i]) || !hasValidGuard(checks, i) {
			return fmt.Errorf("%w: check %d is out of bounds", corecounter.ErrInvalid, i)
		}
		for j := range i {
			if string(checks[i].Key) == string(checks[j].Key) {
				return fmt.Errorf("%w: checks %d and %d have the key %q", corecounter.ErrInvalid, j, i, checks[i].Key)
			}
		}
	}
	return nil
}

func valid(c *corecounter.Check) bool {
	if c.Penalty != nil {
		return c.Limit == nil && c.Bounds == nil && c.Guard == 0 && c.Cost == 0 && c.Age == 0 && penaltyStands(c.Penalty) &&
			(c.Op == corecounter.OpTake || c.Op == corecounter.OpLook || c.Op == corecounter.OpReset)
	}
	if c.Limit == nil || c.Limit.Count() == 0 || c.Op > corecounter.OpReset || c.Cost < 0 || c.Cost > corecounter.CountMax+1 {
		return false
	}
	if (c.Bounds != nil) != (c.Limit.Calendar() != 0) {
		return false
	}
	if b := c.Bounds; b != nil && (b[0] <= 0 || b[1] <= b[0] || b[2] <= b[1] || b[3] <= b[2]) {
		return false
	}
	if c.Age < 0 || c.Age > c.Limit.Window() || c.Age > 0 && (c.Limit.Algorithm() == corecounter.SlidingLog ||
		c.Op != corecounter.OpUpTo && c.Op != corecounter.OpRefund) {
		return false
	}
	return c.Op != corecounter.OpUpTo ||
		c.Min >= 1 && c.Min <= max(1, c.Cost) && c.Max >= c.Cost && c.ShareMille >= 0 && c.ShareMille <= 1000
}

// penaltyStands reports whether the numbers of a penalty are valid.
func penaltyStands(p *corecounter.Penalty) bool {
	for _, m := range p.Multipliers {
		if m < 1 || m > corecounter.MultiplierMax {
			return false
		}
	}
	return p.Window > 0 && p.Window <= corecounter.PenaltyMax && p.Max >= 0 && p.Max <= corecounter.PenaltyMax && p.Threshold >= 1 &&
		p.Threshold <= corecounter.ViolationsMax && len(p.Multipliers) > 0 && len(p.Multipliers) <= corecounter.MultipliersMax
}

// hasValidGuard reports whether a check names no guard, or names the check of a penalty as its
// guard and has a valid violation ID.
func hasValidGuard(checks []corecounter.Check, i int) bool {
	c := &checks[i]
	if c.Guard == 0 {
		return true
	}
	return c.Guard > 0 && c.Guard <= len(checks) && checks[c.Guard-1].Penalty != nil &&
		c.Violation >= 1 && c.Violation <= corecounter.ViolationMax
}
