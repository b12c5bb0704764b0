// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestPace: if a server takes a certain time for each check and another lane keeps it equally busy,
// batches soon become small enough to be answered within the timeout, but no smaller.
func TestPace(t *testing.T) {
	const timeout = 50 * time.Millisecond
	for _, c := range []struct {
		roundTrip, perCheck time.Duration
		least               int64 // the number of checks in a batch at the end
	}{
		{200 * time.Microsecond, 2 * time.Microsecond, 1500}, {200 * time.Microsecond, 20 * time.Microsecond, 150},
		{5 * time.Millisecond, 20 * time.Microsecond, 150}, {20 * time.Millisecond, 2 * time.Microsecond, 1500},
		{200 * time.Microsecond, 200 * time.Microsecond, paceMin}, {time.Second, time.Microsecond, paceMin},
	} {
		var p pace
		p.most.Store(paceMax) // this is the state after calls that cost little
		late := 0
		for batch := range 2000 {
			most := p.most.Load()
			if batch%100 == 0 {
				most = 1 // this simulates a pause in the traffic
			}
			took := c.roundTrip + 2*time.Duration(most)*c.perCheck
			if took > timeout {
				late++
			}
			p.learn(min(took, timeout), timeout, int(most), took <= timeout)
		}
		if got := p.most.Load(); got < c.least {
			t.Errorf("%+v: %d checks in a batch at the end", c, got)
		}
		if late > 10 && c.roundTrip < timeout {
			t.Errorf("%+v: %d of 2000 batches are late", c, late)
		}
	}
}

// TestABatchIsBoundedByItsChecks: calls with many checks are sent in small batches.
func TestABatchIsBoundedByItsChecks(t *testing.T) {
	const calls, checksEach = 100, 24
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	ready(t, s)
	limit := limittest.New(t, "1000/1h fixed_window")
	n := s.only.Load()
	n.pace.most.Store(paceMin)
	before, release := s.Stats().Batches, stall(s)
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			if err := takeMany(s, checksEach, limit); err != nil {
				t.Error(err)
			}
		})
	}
	waitUntil(t, "the calls wait", func() bool { return s.Stats().Waiting == calls })
	release()
	all.Wait()
	if batches := s.Stats().Batches - before; batches < 5 {
		t.Errorf("%d calls of %d checks went out in %d batches", calls, checksEach, batches)
	}
}

// takeMany makes one call with many checks.
func takeMany(s *Store, n int, l *counter.Limit) error {
	checks, results := make([]counter.Check, n), make([]counter.Result, n)
	for i := range checks {
		checks[i] = counter.Check{Key: fmt.Appendf(nil, "rl1:a:r:{x}:%d:1h:fw", i), Limit: l, Cost: 1}
	}
	return s.Take(context.Background(), checks, results)
}

// TestABurstAtASlowRedis: if the server needs longer than the timeout for all calls of a burst,
// they wait in the queue and are answered. The server is slow because it is stopped most of the
// time.
func TestABurstAtASlowRedis(t *testing.T) {
	const callers, rounds, checksEach = 200, 5, 24
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: 200 * time.Millisecond})
	ready(t, s)
	s.settings.queueWait = time.Minute // the test does not depend on the machine's speed
	limit, stop := limittest.New(t, "1000000/1h fixed_window"), make(chan struct{})
	var slowing, all sync.WaitGroup
	slowing.Go(func() {
		defer server.Resume()
		stopped, running := time.NewTicker(25*time.Millisecond), time.NewTicker(time.Millisecond)
		defer stopped.Stop()
		defer running.Stop()
		for {
			server.Pause()
			select {
			case <-stop:
				return
			case <-stopped.C:
			}
			server.Resume()
			<-running.C
			<-running.C
		}
	})
	var answered atomic.Int64
	for range callers {
		all.Go(func() {
			for range rounds {
				if takeMany(s, checksEach, limit) == nil {
					answered.Add(1)
				}
			}
		})
	}
	all.Wait()
	close(stop)
	slowing.Wait()
	stats := s.Stats()
	t.Logf("%d of %d calls were answered, in %d batches; failures by kind: %v", answered.Load(), callers*rounds, stats.Batches, stats.Failures)
	if answered.Load() < callers*rounds*3/4 || stats.Breaker != BreakerClosed {
		t.Errorf("%d of %d calls were answered, the breaker is %s", answered.Load(), callers*rounds, stats.Breaker)
	}
}
