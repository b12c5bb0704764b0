// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/lease"
)

// batchMax is how many give-backs go out together: a store over the network has them in one pipeline.
const batchMax = 128

// life is what goes on in the background: a ticker while anything is in hand, and calls made in advance.
type life struct {
	closed  atomic.Bool // nothing is taken in advance any more
	holding atomic.Int64
	active  atomic.Int64 // calls under way that others may wait for, or that units are reserved for
	ending  chan struct{}
	closing sync.Once

	mu      sync.Mutex // of what follows
	ended   bool
	ticking bool
	running sync.WaitGroup
}

// start runs f in a goroutine, unless the store is closed.
func (l *life) start(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.running.Go(f)
	return true
}

// lookAfter has the ticker look after a counter that holds anything. The caller holds the lock.
func (s *Store) lookAfter(sh *shard, h *held) {
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

// tickWhileHolding gives back what is not used, until nothing is in hand.
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

// rest ends the ticker if nothing is in hand.
func (s *Store) rest() bool {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	s.ticking = s.holding.Load() > 0
	return !s.ticking
}

// tick gives back what need not be in hand.
func (s *Store) tick(ctx context.Context) {
	s.sweep(ctx, func(c *lease.Counter, backs []lease.GiveBack) []lease.GiveBack { return c.Tick(s.now(), backs) })
}

// sweep gives back what take takes out of each counter that holds anything.
func (s *Store) sweep(ctx context.Context, take func(*lease.Counter, []lease.GiveBack) []lease.GiveBack) {
	var backs []lease.GiveBack
	var calls []core.Call
	for i := range s.counters.shards {
		sh := &s.counters.shards[i]
		sh.mu.Lock()
		kept := sh.ticking[:0]
		for _, h := range sh.ticking {
			backs = take(&h.counter, backs[:0])
			for j := range backs {
				calls = append(calls, h.giveBack(&backs[j]))
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

// giveBack returns a call that gives units back: one of its own, so that none fails with another.
func (h *held) giveBack(b *lease.GiveBack) core.Call {
	c := h.check()
	b.Fill(&c)
	return core.Call{Checks: []core.Check{c}, Results: make([]core.Result, 1)}
}

// send sends give-backs, once: what becomes of one that fails is not known, and repeated it might be credited twice.
func (s *Store) send(ctx context.Context, calls []core.Call) {
	if len(calls) == 0 {
		return
	}
	defer func() { _ = recover() }() // a store that panics ends its callers' calls, but not the process from here
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

// prefetch makes a call in advance, while the request that found little in hand goes on. The caller holds the lock.
func (s *Store) prefetch(now core.Micros, sh *shard, h *held, l *core.Limit) {
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
		h.counter.Unasked()
	}
}

// fetch makes a call for nobody but those who wait for it meanwhile, and the hand.
func (s *Store) fetch(sh *shard, h *held, asking *lease.Asking, check core.Check) {
	defer s.active.Add(-1)
	ctx, results, err, sent := context.Background(), make([]core.Result, 1), errPanicked, s.now()
	defer func() {
		_ = recover()
		sh.mu.Lock()
		defer sh.mu.Unlock()
		h.pins--
		if err == nil {
			s.heard(sent)
		}
		s.returned(h, asking, &results[0], err, shared(ctx, err), false)
		s.lookAfter(sh, h)
	}()
	s.counts.calls.Add(1)
	err = s.inner.Take(ctx, []core.Check{check}, results)
}

// closePause is how often Close looks whether calls are still under way.
const closePause = time.Millisecond

// Close gives back what is in hand, until ctx is done, and returns when no goroutine of the store is left. Calls that are
// under way are waited for, since what they bring goes back too; later ones are answered by the store beneath, which Close
// does not close. It may be called more than once. The error is the context's, if it was done before all was given back.
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
