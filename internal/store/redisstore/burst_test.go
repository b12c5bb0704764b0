// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// callAtOnce makes concurrent calls. It returns how many units were granted, how many calls failed
// with each kind of failure, and the longest wait.
func callAtOnce(s *Store, callers int, key func(i int) string, limit *counter.Limit) (granted int64, kinds map[string]int, longest time.Duration) {
	var (
		mu    sync.Mutex
		all   sync.WaitGroup
		begin = make(chan struct{})
	)
	kinds = map[string]int{}
	for i := range callers {
		all.Go(func() {
			ctx, results := context.Background(), make([]counter.Result, 1)
			if i%2 == 0 { // so that both ways into a lane are used
				var cancel context.CancelFunc
				ctx, cancel = context.WithCancel(ctx)
				defer cancel()
			}
			checks := take1(key(i), limit)
			<-begin
			start := time.Now()
			err := s.Take(ctx, checks, results)
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			longest = max(longest, took)
			if err != nil {
				kinds[kindOf(err)]++
				return
			}
			granted += results[0].Granted
		})
	}
	close(begin)
	all.Wait()
	return granted, kinds, longest
}

// TestNoCallOfABurstFails: 10,000 concurrent calls wait in the queue for longer than the timeout,
// and Redis is healthy. Each call is answered, because time in the queue is not evidence against
// Redis.
func TestNoCallOfABurstFails(t *testing.T) {
	const callers = 10_000
	server := redistest.Start(t)
	// The timeout is long, because a busy machine can be slow.
	s := open(t, Options{URL: server.URL(), Timeout: 500 * time.Millisecond})
	ready(t, s)
	s.settings.queueWait = time.Minute // so long that the test does not depend on the machine's speed
	for name, key := range map[string]func(int) string{
		"one counter":    func(int) string { return "rl1:shop:api:{ip:192.0.2.1}:1h:fw" },
		"a counter each": func(i int) string { return fmt.Sprintf("rl1:shop:api:{h:%d}:1h:fw", i) },
	} {
		release := stall(s)
		go func() {
			defer release()
			waitUntil(t, "the burst waits", func() bool { return s.Stats().Waiting == callers })
			since := s.clock()
			waitUntil(t, "it has waited for long", func() bool { return s.clock() > since+2*s.settings.timeout })
		}()
		granted, kinds, longest := callAtOnce(s, callers, key, limittest.New(t, "1000000000/1h fixed_window"))
		t.Logf("%s: %d of %d granted, failures %v, the longest call took %s", name, granted, callers, kinds, longest)
		if granted != callers || len(kinds) > 0 {
			t.Errorf("%s: %d of %d calls were answered, failures %v", name, granted, callers, kinds)
		}
	}
	if state := s.Stats().Breaker; state != BreakerClosed {
		t.Errorf("the breaker is %s", state)
	}
}

// TestHungRedisUnderABurst: if the server hangs, the calls of a burst wait only until a few batches
// have timed out, and not for as long as they would wait for a working server. No call fails
// because of an overload. The whole burst would need 40 batches. A busy machine can take seconds to
// make all calls. So the test counts batches instead of measuring time, and allows calls to wait in
// the queue for a long time.
func TestHungRedisUnderABurst(t *testing.T) {
	const callers, batchesMax = 5000, 16
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	s.settings.queueWait = time.Minute
	before := s.Stats().Batches
	server.Pause()
	defer server.Resume()
	key := func(i int) string { return fmt.Sprintf("rl1:shop:api:{h:%d}:1h:fw", i) }
	granted, kinds, longest := callAtOnce(s, callers, key, limittest.New(t, "1000000000/1h fixed_window"))
	t.Logf("%d granted, failures %v, the longest call took %s", granted, kinds, longest)
	// A call is slow if the server answered another one after it, as it may have before the pause.
	if granted > 0 || kinds["timeout"]+kinds["slow"]+kinds["breaker_open"] != callers {
		t.Errorf("%d of %d calls were answered, failures %v", granted, callers, kinds)
	}
	if sent := s.Stats().Batches - before; sent > batchesMax || longest > s.settings.queueWait/2 {
		t.Errorf("%d batches were sent, want at most %d; a call with a timeout of %s took %s", sent, batchesMax, TimeoutDefault, longest)
	}
}

// TestOthersOvertakeABurst: a client that sends requests for thousands of counters at once does not
// delay another client.
func TestOthersOvertakeABurst(t *testing.T) {
	const callers, others = 8000, 20
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: 500 * time.Millisecond})
	ready(t, s)
	s.settings.queueWait = time.Minute
	limit := limittest.New(t, "1000000000/1h fixed_window")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var (
		all      sync.WaitGroup
		answered atomic.Int64
	)
	ask := func(source uint32, name string) {
		checks := take1("rl1:shop:api:{h:"+name+"}:1h:fw", limit)
		checks[0].Source = source
		if err := s.Take(ctx, checks, make([]counter.Result, 1)); err != nil {
			t.Errorf("source %d: %v", source, err)
		}
	}
	release := stall(s)
	for i := range callers {
		all.Go(func() {
			ask(1, fmt.Sprint(i))
			answered.Add(1)
		})
	}
	waitUntil(t, "the burst waits", func() bool { return s.Stats().Waiting == callers })
	sources := othersThan(1, others)
	behind := make([]int64, others)
	waits := make([]time.Duration, others)
	for i := range others {
		all.Go(func() {
			start := time.Now()
			ask(sources[i], fmt.Sprint("other", i))
			behind[i], waits[i] = answered.Load(), time.Since(start)
		})
	}
	waitUntil(t, "the others wait", func() bool { return s.Stats().Waiting == callers+others })
	start := time.Now()
	release()
	all.Wait()
	t.Logf("the burst took %s; the others were answered after %d of its %d calls at the latest, within %s", time.Since(start),
		slices.Max(behind), callers, slices.Max(waits))
	if most := slices.Max(behind); most > callers/2 {
		t.Errorf("a call of another client was answered after %d of %d of the burst", most, callers)
	}
}

// othersThan returns n sources that do not share a queue with the given source.
func othersThan(source uint32, n int) (others []uint32) {
	own := sourceOf(&counter.Check{Source: source}) % sourceQueues
	for other := source + 2; len(others) < n; other += 2 {
		if sourceOf(&counter.Check{Source: other})%sourceQueues != own {
			others = append(others, other)
		}
	}
	return others
}

// stall occupies all lanes of a store until the function release is called.
func stall(s *Store) (release func()) {
	n := s.only.Load()
	var lanes []*lane
	for range s.settings.lanes {
		lanes = append(lanes, <-n.idle)
	}
	return func() {
		for _, l := range lanes {
			n.idle <- l
		}
	}
}
