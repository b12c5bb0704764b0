// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock/core/counter"
)

// Store is a store that records settlements and can be made unavailable. A Store is safe for
// concurrent use.
type Store struct {
	Of counter.Store

	mu      sync.Mutex
	calls   int
	settled int64
	away    bool
}

// Take implements [counter.Store].
func (s *Store) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away {
		return fmt.Errorf("the store is away: %w", counter.ErrUnavailable)
	}
	err := s.Of.Take(ctx, checks, results)
	settles, units := false, int64(0)
	for i := range checks {
		switch checks[i].Op {
		case counter.OpForce:
			settles, units = true, units+checks[i].Cost
		case counter.OpRefund:
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

// SetAway makes the store unavailable, or available again.
func (s *Store) SetAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

// Settled returns the number of settlements and the units they charged in total.
func (s *Store) Settled() (calls int, units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls, s.settled
}
