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
	slots := make([]core.Slot, len(checks))
	for i := range checks {
		slots[i] = m.slot(checks[i].Key)
	}
	core.Decide(m.now, checks, slots, results[:len(checks)])
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
	s.Marks = slices.Clone(s.Marks)
	return s
}

func (m *Model) keep(key []byte, s core.Slot) {
	if m.counters == nil {
		m.counters = map[string]core.Slot{}
	}
	m.counters[string(key)] = s
}

// Counter returns a copy of what is kept for key.
func (m *Model) Counter(_ testing.TB, key []byte, _ *core.Limit) (core.State, []core.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.slot(key)
	return s.State, s.Marks
}

// Subject returns the model as a store under exam.
func (m *Model) Subject() Subject { return Subject{Store: m, Pin: m.Pin, Counter: m.Counter} }

func validate(checks []core.Check, results []core.Result) error {
	switch {
	case len(checks) > core.ChecksMax:
		return fmt.Errorf("%w: %d checks, at most %d", core.ErrInvalid, len(checks), core.ChecksMax)
	case len(results) < len(checks):
		return fmt.Errorf("%w: room for %d results of %d checks", core.ErrInvalid, len(results), len(checks))
	}
	for i := range checks {
		if !valid(&checks[i]) {
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
	if c.Limit == nil || c.Limit.Count() == 0 || c.Op > core.OpForce || c.Cost < 0 || c.Cost > core.CountMax+1 {
		return false
	}
	return c.Op != core.OpUpTo ||
		c.Min >= 1 && c.Min <= max(1, c.Cost) && c.Max >= c.Cost && c.ShareMille >= 0 && c.ShareMille <= 1000
}
