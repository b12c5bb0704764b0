// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"sync"
	"time"

	"github.com/penstock/penstock/core"
)

// The bounds of what settles. Settlements wait for the store, not for the machine: sixteen at a time keep a Redis at
// half a millisecond busy with 30,000 a second, which it batches. What waits is some 1 KB each.
const (
	settlersCount  = 16
	settlementsMax = 8192
	// settleDeadline is how long a Caddy that stops waits for settlements: each takes at most the store's own deadline.
	settleDeadline = 5 * time.Second
)

// The ends of a settlement, as the metric names them. Unless it was settled, the reservation stands as the charge.
const (
	settlementSettled = "settled"
	settlementFailed  = "failed"  // the store did not answer: it may have been settled, so it is not tried again
	settlementDropped = "dropped" // too many wait already, or the store is closed
)

// settler sends what remains to be done about charges to a store, once the responses are known. Requests do not wait for
// it. Its workers start with the first settlement. Safe for concurrent use.
type settler struct {
	store   core.Store
	queue   chan *settlement
	started sync.Once
	workers sync.WaitGroup
	mu      sync.RWMutex // held while something is put into the queue, so that nothing comes behind its end
	ended   bool         // the queue is closed
}

func newSettler(store core.Store) *settler {
	return &settler{store: store, queue: make(chan *settlement, settlementsMax)}
}

// send takes over a settlement with its checks.
func (s *settler) send(job *settlement) {
	if s.enqueue(job) {
		return
	}
	settlementsTotal.WithLabelValues(settlementDropped).Inc()
	job.release()
}

func (s *settler) enqueue(job *settlement) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.ended {
		return false
	}
	s.started.Do(func() {
		for range settlersCount {
			s.workers.Go(s.work)
		}
	})
	select {
	case s.queue <- job:
		return true
	default:
		return false
	}
}

func (s *settler) work() {
	for job := range s.queue {
		s.settle(job)
	}
}

func (s *settler) settle(job *settlement) {
	defer job.release()
	if cap(job.results) < len(job.checks) {
		job.results = make([]core.Result, len(job.checks))
	}
	result := settlementSettled
	if err := s.store.Take(context.Background(), job.checks, job.results[:len(job.checks)]); err != nil {
		result = settlementFailed
	}
	settlementsTotal.WithLabelValues(result).Inc()
}

// stop sends what waits, and returns when that is done or the deadline is over; it reports which. The store is open until
// then.
func (s *settler) stop(deadline time.Duration) (drained bool) {
	s.mu.Lock()
	if !s.ended {
		s.ended = true
		close(s.queue)
	}
	s.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		s.workers.Wait()
		close(finished)
	}()
	select {
	case <-finished:
		return true
	case <-time.After(deadline):
		return false
	}
}
