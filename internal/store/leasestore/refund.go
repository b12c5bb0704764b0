// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/lease"
)

// batchMax is the greatest number of refunds sent together. A store over the network sends them in
// one pipeline.
const batchMax = 128

// life holds the state of the store's background work: a ticker while units are held, and
// prefetching calls.
type life struct {
	closed  atomic.Bool // whether no more units are leased
	holding atomic.Int64
	// calls under way for which other requests might wait, or that have reserved units
	active  atomic.Int64
	ending  chan struct{}
	closing sync.Once

	mu      sync.Mutex // guards the fields below
	ended   bool
	ticking bool
	running sync.WaitGroup
}

// life.start runs f in a new goroutine, unless the store is closed.
func (l *life) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.running.Go(f)
	return true
}

// lookAfter adds a counter to those that the ticker visits, if it holds units. The caller holds the
// lock.
func (s *Store) lookAfter(sh *shard, h *heldCounter) {
	if h.ticking || !h.counter.Holding() {
		return
	}
	h.ticking = true
	sh.ticking = append(sh.ticking, h)
	if s.holding.Add(1) > 1 {
		return
	}
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if !s.ticking && !s.ended {
		s.ticking = true
		s.running.Go(s.tickWhileHolding)
	}
}

// tickWhileHolding refunds unused units until none are held.
func (s *Store) tickWhileHolding() {
	ticker := time.NewTicker(time.Duration(lease.TickEvery) * time.Microsecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.ending:
			return
		}
		s.tick(context.Background())
		if s.rest() {
			return
		}
	}
}

// Store.rest reports whether the ticker must end because no units are held.
func (s *Store) rest() bool {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.ticking = s.holding.Load() > 0
	return !s.ticking
}

// Store.tick refunds units that need not be held.
func (s *Store) tick(ctx context.Context) {
	s.sweep(ctx, func(c *lease.Counter, backs []lease.Refund) []lease.Refund { return c.Tick(s.now(), backs) })
}

// Store.sweep calls the function named take for each counter that holds units, and sends the
// refunds that the function returns.
func (s *Store) sweep(ctx context.Context, take func(*lease.Counter, []lease.Refund) []lease.Refund) {
	var backs []lease.Refund
	var calls []counter.Call
	for i := range s.counters.shards {
		sh := &s.counters.shards[i]
		sh.mu.Lock()
		kept := sh.ticking[:0]
		for _, h := range sh.ticking {
			backs = take(&h.counter, backs[:0])
			for j := range backs {
				calls = append(calls, h.refund(&backs[j]))
			}
			if h.ticking = h.counter.Holding(); h.ticking {
				kept = append(kept, h)
			} else {
				s.holding.Add(-1)
			}
		}
		clear(sh.ticking[len(kept):])
		sh.ticking = kept
		sh.mu.Unlock()
		if len(calls) >= batchMax {
			s.send(ctx, calls)
			calls = calls[:0]
		}
	}
	s.send(ctx, calls)
}

// heldCounter.refund returns a call of the store that makes one refund. Each refund is a separate
// call, so that none fails because of another.
func (h *heldCounter) refund(b *lease.Refund) counter.Call {
	c := h.check()
	b.Fill(&c)
	return counter.Call{Checks: []counter.Check{c}, Results: make([]counter.Result, 1)}
}

// Store.send sends refunds once. The outcome of a failed refund is unknown, and repeating it might
// credit the units twice.
func (s *Store) send(ctx context.Context, calls []counter.Call) {
	if len(calls) == 0 {
		return
	}
	defer func() { _ = recover() }() // a panic of the store must not end the process
	s.counts.calls.Add(uint64(len(calls)))
	for i := range calls {
		s.counts.returned.Add(uint64(calls[i].Checks[0].Cost))
	}
	for len(calls) > 0 {
		n := min(len(calls), batchMax)
		s.ask(ctx, calls[:n])
		calls = calls[n:]
	}
}

// Store.prefetch takes units in the background while the request that found few units continues.
// The caller holds the lock.
func (s *Store) prefetch(now counter.Micros, sh *shard, h *heldCounter, l *counter.Limit) {
	asking, ok := h.ask(now, l, 0)
	if !ok {
		return
	}
	check := h.check()
	asking.Fill(&check)
	s.active.Add(1)
	if !s.start(func() { s.fetch(sh, h, &asking, check) }) {
		s.active.Add(-1)
		h.pins--
		h.counter.CancelCall()
	}
}

// Store.fetch makes a prefetching call. The granted units go to the waiting requests and into the
// held units.
func (s *Store) fetch(sh *shard, h *heldCounter, asking *lease.Call, check counter.Check) {
	defer s.active.Add(-1)
	ctx, results, err, sent := context.Background(), make([]counter.Result, 1), errPanicked, s.now()
	checks := []counter.Check{check}
	defer func() {
		_ = recover()
		if err == nil {
			s.learnUses(sent, checks, results)
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		h.pins--
		if err == nil {
			s.noteAnswer(sent)
		}
		s.returned(h, asking, &results[0], err, sharedError(ctx, err), false)
		s.lookAfter(sh, h)
	}()
	s.counts.calls.Add(1)
	err = s.inner.Take(ctx, checks, results)
}

// closePause is the interval at which Close checks whether calls are still under way.
const closePause = time.Millisecond

// Close refunds the held units, and waits for the store's goroutines to end. It also waits for
// calls under way, because their units are refunded too. Later calls go to the inner store, which
// Close does not close. Close may be called more than once. If ctx is done before everything is
// refunded, Close returns the context's error.
func (s *Store) Close(ctx context.Context) error {
	s.closing.Do(func() {
		s.closed.Store(true)
		s.life.mu.Lock()
		s.ended = true
		s.life.mu.Unlock()
		close(s.ending)
	})
	pause := time.NewTicker(closePause)
	defer pause.Stop()
	for under := true; under; {
		under = s.active.Load() > 0
		s.sweep(ctx, (*lease.Counter).Release)
		if !under {
			break
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ended := make(chan struct{})
	go func() {
		s.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
