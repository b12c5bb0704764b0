// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"

	"github.com/penstock/penstock/core"
)

// batch is what of several calls the store beneath is asked.
type batch struct {
	calls []core.Call
	from  []int // where each is among the caller's
	kinds []kind
}

// TakeAll answers the calls as [core.Batcher] says.
func (s *Store) TakeAll(ctx context.Context, calls []core.Call) {
	b := s.batches.Get().(*batch)
	for i := range calls {
		c := &calls[i]
		if c.Err = core.ValidateChecks(c.Checks, c.Results); c.Err != nil {
			continue
		}
		kind := kindOf(c.Checks)
		if kind == takes && s.denials != nil && ctx.Err() == nil && s.refuse(c.Checks, c.Results) {
			continue
		}
		b.calls, b.from, b.kinds = append(b.calls, *c), append(b.from, i), append(b.kinds, kind)
	}
	if len(b.calls) > 0 {
		sent := s.now()
		s.counts.calls.Add(uint64(len(b.calls)))
		s.ask(ctx, b.calls)
		for j := range b.calls {
			c := &b.calls[j]
			s.learn(sent, b.kinds[j], c.Checks, c.Results, c.Err)
			calls[b.from[j]].Err = c.Err
		}
	}
	clear(b.calls)
	b.calls, b.from, b.kinds = b.calls[:0], b.from[:0], b.kinds[:0]
	s.batches.Put(b)
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
