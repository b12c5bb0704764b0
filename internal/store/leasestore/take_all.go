// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock/penstock/core/counter"
)

// batch holds the calls of a TakeAll that must be sent to the inner store.
type batch struct {
	calls    []counter.Call
	from     []int // the index of each call in the caller's calls
	kinds    []kind
	attempts []*attempt // the attempt of each call; nil for a call without leases
	passes   []pass
	waiting  sync.WaitGroup
}

// TakeAll implements [counter.Batcher].
func (s *Store) TakeAll(ctx context.Context, calls []counter.Call) {
	b := s.pools.batches.Get().(*batch)
	for i := range calls {
		b.addCall(ctx, s, calls, i)
	}
	s.askTogether(ctx, b)
	for j := range b.calls {
		calls[b.from[j]].Err = b.calls[j].Err
	}
	clear(b.calls)
	clear(b.attempts)
	clear(b.passes)
	b.calls, b.from, b.kinds, b.attempts, b.passes = b.calls[:0], b.from[:0], b.kinds[:0], b.attempts[:0], b.passes[:0]
	s.pools.batches.Put(b)
}

// askTogether sends the batch and waits for the calls that have their own goroutines. askTogether
// waits for them even if the store panics, because they write to the caller's memory.
func (s *Store) askTogether(ctx context.Context, b *batch) {
	defer b.waiting.Wait()
	if len(b.calls) > 0 {
		s.askAll(ctx, b)
	}
}

// addCall answers a call from memory or from held units, makes it wait in a goroutine, or adds it
// to the batch.
func (b *batch) addCall(ctx context.Context, s *Store, calls []counter.Call, i int) {
	c := &calls[i]
	if c.Err = counter.ValidateChecks(c.Checks, c.Results); c.Err != nil {
		return
	}
	kind, leased, exact := kindOf(c.Checks)
	if ctx.Err() == nil {
		if kind == takes && exact && s.denyFromMemory(c.Checks, c.Results, true) {
			return
		}
		if leased && kind <= shadows && !s.closed.Load() {
			b.lease(ctx, s, calls, i, kind)
			return
		}
	}
	p, q, err := s.enter(kind, c.Checks, c.Results, nil)
	switch {
	case err != nil:
		c.Err = err
	case q != nil:
		b.wait(c, func() error { return s.takeInTurn(ctx, p, q, kind, c.Checks, c.Results) })
	default:
		b.put(*c, i, kind, nil, p)
	}
}

// batch.put adds a call to the batch.
func (b *batch) put(c counter.Call, from int, k kind, a *attempt, p pass) {
	b.calls, b.from = append(b.calls, c), append(b.from, from)
	b.kinds, b.attempts, b.passes = append(b.kinds, k), append(b.attempts, a), append(b.passes, p)
}

// batch.wait runs a waiting call in a goroutine, so that it does not delay the rest of the batch.
func (b *batch) wait(c *counter.Call, take func() error) {
	b.waiting.Go(func() {
		defer func() {
			// Without this, a panic here would end the whole process, not only the request.
			if v := recover(); v != nil {
				c.Err = fmt.Errorf("%w: %w: %v", counter.ErrUnavailable, errPanicked, v)
			}
		}()
		c.Err = take()
	})
}

// batch.lease adds a call in which some limits can be leased.
func (b *batch) lease(ctx context.Context, s *Store, calls []counter.Call, i int, k kind) {
	c := &calls[i]
	a := s.attempt(k, c.Checks, c.Results)
	switch a.reserve() {
	case settled:
		a.release()
	case ready:
		b.ready(ctx, s, a, c, i)
	case waiting:
		b.wait(c, func() error { return s.finish(ctx, a, waiting) })
	}
}

// batch.ready adds an attempt that must call the store, or makes it wait at its gate.
func (b *batch) ready(ctx context.Context, s *Store, a *attempt, c *counter.Call, i int) {
	var p pass
	if a.owned == 0 && a.recording == nil {
		var q *queued
		if p, q, c.Err = s.enter(a.kind, a.checks, a.results, a.parts); q != nil {
			s.active.Add(1)
			b.wait(c, func() error {
				defer s.active.Add(-1)
				defer a.release()
				return a.takeTurn(ctx, p, q)
			})
			return
		}
		if c.Err != nil {
			a.abandon()
			a.release()
			return
		}
	}
	s.active.Add(1)
	a.compose()
	b.put(counter.Call{Checks: a.asked, Results: a.answers}, i, a.kind, a, p)
}

// askAll sends a batch to the inner store and completes its calls.
func (s *Store) askAll(ctx context.Context, b *batch) {
	sent := s.now()
	s.counts.calls.Add(uint64(len(b.calls)))
	for j := range b.calls {
		b.calls[j].Err = errPanicked
	}
	defer func() {
		for j := range b.calls {
			c, p := &b.calls[j], b.passes[j]
			err := c.Err
			if a := b.attempts[j]; a != nil {
				a.settle(ctx, sent, err)
				s.leaveGate(ctx, p, a.kind, a.checks, a.results, err)
				a.release()
				s.active.Add(-1)
			} else {
				c.Err = s.conclude(ctx, sent, b.kinds[j], c.Checks, c.Results, err)
				s.leaveGate(ctx, p, b.kinds[j], c.Checks, c.Results, err)
			}
		}
	}()
	s.ask(ctx, b.calls)
}

// Store.ask sends the calls to the inner store.
func (s *Store) ask(ctx context.Context, calls []counter.Call) {
	if s.batcher != nil {
		s.batcher.TakeAll(ctx, calls)
		return
	}
	for i := range calls {
		calls[i].Err = s.inner.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}
