// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock/core"
)

// Store is a store that tells what was settled, and can be away. Safe for concurrent use.
type Store struct {
	Of core.Store

	mu      sync.Mutex
	calls   int
	settled int64
	away    bool
}

// Take implements [core.Store].
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		return fmt.Errorf("the store is away: %w", core.ErrUnavailable)
	}
	err := s.Of.Take(ctx, checks, results)
	settles, units := false, int64(0)
	for i := range checks {
		switch checks[i].Op {
		case core.OpForce:
			settles, units = true, units+checks[i].Cost
		case core.OpGiveBack:
			settles, units = true, units-checks[i].Cost
		}
	}
	if settles {
		s.mu.Lock()
		s.calls++
		s.settled += units
		s.mu.Unlock()
	}
	return err
}

// SetAway makes the store answer nothing from now on, or answer again.
func (s *Store) SetAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// Settled returns how many settlements there were, and how many units they have charged together.
func (s *Store) Settled() (calls int, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.settled
}
