// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock/core"
)

// batch is what of several calls the store beneath is asked.
type batch struct {
	calls    []core.Call
	from     []int // where each is among the caller's
	kinds    []kind
	attempts []*attempt // nil for a call without leases
	waiting  sync.WaitGroup
}

// TakeAll answers the calls as [core.Batcher] says.
func (s *Store) TakeAll(ctx context.Context, calls []core.Call) {
	b := s.batches.Get().(*batch)
	for i := range calls {
		b.add(ctx, s, calls, i)
	}
	s.askTogether(ctx, b)
	for j := range b.calls {
		calls[b.from[j]].Err = b.calls[j].Err
	}
	clear(b.calls)
	clear(b.attempts)
	b.calls, b.from, b.kinds, b.attempts = b.calls[:0], b.from[:0], b.kinds[:0], b.attempts[:0]
	s.batches.Put(b)
}

// askTogether asks for what is to be asked, and waits for those that wait for themselves: also where the store panics, for they
// write into what is the caller's.
func (s *Store) askTogether(ctx context.Context, b *batch) {
	defer b.waiting.Wait()
	if len(b.calls) > 0 {
		s.askAll(ctx, b)
	}
}

// add answers a call from memory or from the hand, has it wait for itself, or adds it to what is asked.
func (b *batch) add(ctx context.Context, s *Store, calls []core.Call, i int) {
	c := &calls[i]
	if c.Err = core.ValidateChecks(c.Checks, c.Results); c.Err != nil {
		return
	}
	kind, leased, exact := kindOf(c.Checks)
	if ctx.Err() == nil {
		if kind == takes && exact && s.refuse(c.Checks, c.Results, true) {
			return
		}
		if leased && kind <= shadows && !s.closed.Load() {
			b.lease(ctx, s, calls, i, kind)
			return
		}
	}
	b.calls, b.from = append(b.calls, *c), append(b.from, i)
	b.kinds, b.attempts = append(b.kinds, kind), append(b.attempts, nil)
}

// lease adds a call of which some limits may be leased. One that has to wait does so in a goroutine of its own: what the
// others of the batch are about to ask must not wait with it.
func (b *batch) lease(ctx context.Context, s *Store, calls []core.Call, i int, k kind) {
	c := &calls[i]
	a := s.attempt(k, c.Checks, c.Results)
	switch a.reserve() {
	case settled:
		a.release()
	case ready:
		s.active.Add(1)
		a.compose()
		b.calls = append(b.calls, core.Call{Checks: a.asked, Results: a.answers})
		b.from, b.kinds, b.attempts = append(b.from, i), append(b.kinds, k), append(b.attempts, a)
	case waiting:
		b.waiting.Go(func() {
			defer func() {
				if v := recover(); v != nil { // here it would end the process, and not the caller's request
					c.Err = fmt.Errorf("%w: %w: %v", core.ErrUnavailable, errPanicked, v)
				}
			}()
			c.Err = s.finish(ctx, a, waiting)
		})
	}
}

// askAll has the store beneath answer a batch.
func (s *Store) askAll(ctx context.Context, b *batch) {
	sent := s.now()
	s.counts.calls.Add(uint64(len(b.calls)))
	for j := range b.calls {
		b.calls[j].Err = errPanicked
	}
	defer func() {
		for j := range b.calls {
			c := &b.calls[j]
			if a := b.attempts[j]; a != nil {
				a.settle(ctx, sent, c.Err)
				a.release()
				s.active.Add(-1)
			} else {
				c.Err = s.conclude(ctx, sent, b.kinds[j], c.Checks, c.Results, c.Err)
			}
		}
	}()
	s.ask(ctx, b.calls)
}

// ask has the store beneath answer the calls.
func (s *Store) ask(ctx context.Context, calls []core.Call) {
	if s.batcher != nil {
		s.batcher.TakeAll(ctx, calls)
		return
	}
	for i := range calls {
		calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}
