// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// CountersMaxDefault is how many counters a store holds unless told otherwise: about 100 MB of them.
const CountersMaxDefault = 1 << 20

// CountersMaxBound is the greatest bound that can be asked for.
const CountersMaxBound = 1 << 28

// Options configures a store. The zero Options are the defaults.
type Options struct {
	// CountersMax is how many counters the store holds at most: 0 means CountersMaxDefault, otherwise 1 to
	// CountersMaxBound.
	CountersMax int
	// Now is the store's clock; it must be safe for concurrent use. Nil means the wall clock at New plus the time since
	// then on the monotonic clock, which never goes back.
	Now func() core.Micros
	// Logger is told, at most once a minute, that the store is full. Nil means nobody is.
	Logger *slog.Logger
}

// Store is a [core.Store] in memory. Make one with [New]; it is safe for concurrent use.
type Store struct {
	now       func() core.Micros
	mu        sync.Mutex
	slots     map[string]core.Slot
	overflows atomic.Uint64
}

// New returns an empty store.
func New(o Options) (*Store, error) {
	if o.CountersMax < 0 || o.CountersMax > CountersMaxBound {
		return nil, fmt.Errorf("counters max %d is out of bounds: it must be between 1 and %d", o.CountersMax,
			CountersMaxBound)
	}
	if o.Now == nil {
		o.Now = monotonic()
	}
	return &Store{now: o.Now, slots: make(map[string]core.Slot)}, nil
}

func monotonic() func() core.Micros {
	start := time.Now()
	base := core.Micros(start.UnixMicro())
	return func() core.Micros { return base + core.Micros(time.Since(start).Microseconds()) }
}

// Take answers the checks as [core.Store] says.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", core.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slots := make([]core.Slot, len(checks))
	for i := range checks {
		slots[i] = s.slots[string(checks[i].Key)]
	}
	core.Decide(s.now(), checks, slots, results)
	for i := range checks {
		if slots[i].Write {
			s.slots[string(checks[i].Key)] = slots[i]
		}
	}
	return nil
}

// Len returns how many counters the store holds.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.slots)
}

// Overflows returns how many checks overflow counters have answered since New.
func (s *Store) Overflows() uint64 { return s.overflows.Load() }

// Close does nothing and returns nil: the store has no goroutine.
func (s *Store) Close() error { return nil }

var _ core.Store = (*Store)(nil)
