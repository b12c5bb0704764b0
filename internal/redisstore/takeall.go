// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"time"

	"github.com/penstock/penstock/core"
)

var _ core.Batcher = (*Store)(nil)

// TakeAll implements [core.Batcher]. The calls go out in one pipeline, or one for each 128 of them. What is said of ctx at
// [Store.Take] holds here too: if it cannot be done and Redis is idle, the caller sends the first pipeline himself.
func (s *Store) TakeAll(ctx context.Context, calls []core.Call) {
	var few [batchMax]*call
	made := few[:0]
	for i := range calls {
		made = append(made, s.begin(ctx, &calls[i]))
	}
	own := 0 // how many the caller sends
	var l *lane
	if ctx.Done() == nil && len(s.queue) == 0 {
		select {
		case l = <-s.idle:
			own = min(len(made), batchMax)
		default:
		}
	}
	s.enqueueAll(made[own:], calls[own:])
	if l != nil {
		now := time.Now()
		l.batch(made[:own], now, now.Add(s.settings.timeout))
		s.idle <- l
	}
	for i, c := range made {
		if c != nil {
			calls[i].Err = s.end(ctx, c, i < own, &calls[i])
		}
	}
}

// end waits for the end of a call, which has come if the caller sent it, and returns its error.
func (s *Store) end(ctx context.Context, c *call, sent bool, call *core.Call) error {
	var failure *Failure
	if sent {
		<-c.done
		failure = s.outcome(c)
	} else {
		failure = s.wait(ctx, c)
	}
	if failure != nil {
		return s.fail(failure)
	}
	return s.read(c, call.Checks, call.Results)
}

// begin makes what is to be sent for a call; nil if nothing is, then the call has its error.
func (s *Store) begin(ctx context.Context, call *core.Call) *call {
	call.Err = core.ValidateChecks(call.Checks, call.Results)
	if call.Err != nil || len(call.Checks) == 0 {
		return nil
	}
	c, failure := s.admit(ctx, call.Checks)
	if failure != nil {
		call.Err = s.fail(failure)
		return nil
	}
	return c
}

// enqueueAll leaves calls to the dispatchers. Those for which there is no room have an error then, and are nil.
func (s *Store) enqueueAll(made []*call, calls []core.Call) {
	for i, c := range made {
		if c != nil && !s.enqueue(c) {
			made[i], calls[i].Err = nil, s.fail(errQueueFull)
		}
	}
}
