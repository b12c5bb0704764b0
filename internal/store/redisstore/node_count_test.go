// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestNodesAreCounted: a node that uses Redis counts, a node that has been silent for long does
// not, and the last count remains while Redis is down.
func TestNodesAreCounted(t *testing.T) {
	server := redistest.Start(t)
	var stores []*Store
	for range 3 {
		s, err := New(Options{URL: server.URL()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() }) // never fails
		if n := s.Nodes(); n != 0 {
			t.Errorf("%d nodes before anybody has counted", n)
		}
		stores = append(stores, s)
	}
	ctx := context.Background()
	old := redis.Z{Score: float64(time.Now().Add(-2 * missingAfter).UnixMicro()), Member: "long gone"}
	if err := server.Client().ZAdd(ctx, nodesKey, old).Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		s.CountNodes()
		s.CountNodes()
	}
	eventually.Until(t, 10*time.Second, "all know of three", func() bool {
		return stores[0].Nodes() == 3 && stores[1].Nodes() == 3 && stores[2].Nodes() == 3
	})
	if ttl := server.Client().PTTL(ctx, nodesKey).Val(); ttl <= 0 || ttl > nodesTTL {
		t.Errorf("the count lives for %v", ttl)
	}
	limit, err := counter.NewLimit(counter.FixedWindow, 10, counter.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	eventually.Until(t, 10*time.Second, "the breaker opens", func() bool {
		_ = stores[0].Take(ctx, take1("k", &limit), make([]counter.Result, 1))
		return stores[0].Stats().Breaker != BreakerClosed
	})
	(&nodeCounter{store: stores[0], name: "one"}).turn(time.Now())
	if n := stores[0].Nodes(); n != 3 {
		t.Errorf("%d nodes while Redis is away, want what was known", n)
	}
}

// outage crashes a server, makes calls until the breaker opens, and restarts the server without
// data. It then waits until the breaker has closed without further calls.
func outage(t *testing.T, server *redistest.Server, s *Store) {
	t.Helper()
	server.Kill()
	callUntilOpen(t, s)
	server.Restart()
	waitUntil(t, "the breaker closes", func() bool { return s.Stats().Breaker == BreakerClosed })
}

// registerNodes registers further nodes.
func registerNodes(t *testing.T, server *redistest.Server, names ...string) {
	t.Helper()
	for _, name := range names {
		// These entries are valid for as long as the test runs.
		said := redis.Z{Score: float64(time.Now().Add(time.Minute).UnixMicro()), Member: name}
		if err := server.Client().ZAdd(t.Context(), nodesKey, said).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIdleNodesAreCountedAgain: after an outage the breaker of a node without calls closes, nothing
// is charged, and the node announces itself.
func TestIdleNodesAreCountedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	s.CountNodes()
	waitUntil(t, "it is counted", func() bool { return s.Nodes() == 1 })
	server.Kill()
	callUntilOpen(t, s)
	server.Restart()
	waitUntil(t, "it is counted again", func() bool { return server.Client().ZCard(t.Context(), nodesKey).Val() == 1 })
	waitUntil(t, "the breaker closes", func() bool { return s.Stats().Breaker == BreakerClosed })
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 1 {
		t.Errorf("Redis has %q, want but the census", keys)
	}
}

// TestShortReturn: a Redis that has lost the other nodes' entries, because it lost its data or
// because the entries expired, is trusted only after it has been available for the lifetime of an
// entry.
func TestShortReturn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	ready(t, s)
	c, now := &nodeCounter{store: s, name: "me"}, time.Now()
	believes := func(after time.Duration, want int) {
		t.Helper()
		if c.turn(now.Add(after)); s.Nodes() != want {
			t.Errorf("after %v %d nodes are believed in, want %d", after, s.Nodes(), want)
		}
	}
	registerNodes(t, server, "two", "three")
	believes(0, 3)
	configure(t, server, "flushall")
	for after := 2 * time.Second; after <= missingAfter; after += announceEvery {
		believes(after, 3) // the other nodes have not announced themselves yet
	}
	outage(t, server, s)
	for after := 12 * time.Second; after <= 12*time.Second+missingAfter; after += announceEvery {
		believes(after, 3) // the period starts again
	}
	believes(24*time.Second, 1)
	registerNodes(t, server, "two", "three", "four")
	believes(26*time.Second, 4)
}

// TestCloseWaitsForCounting: Close waits for counting that starts while the store closes. Later
// calls of CountNodes do nothing.
func TestCloseWaitsForCounting(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	closed := make(chan struct{})
	s.counting.Do(func() { // this does what CountNodes does
		go func() {
			defer close(closed)
			s.Close()
		}()
		<-s.ctx.Done()
		select {
		case <-closed:
			t.Error("the store is closed, and a node is about to count")
		case <-time.After(50 * time.Millisecond):
		}
	})
	<-closed
	late := open(t, Options{URL: server.URL()})
	late.Close()
	late.CountNodes()
	late.running.Wait()
	if strings.Contains(stacks(), "countNodes") {
		t.Errorf("a node counts, and its store is closed:\n%s", stacks())
	}
}

// TestHeadcount checks the estimate for sequences of readings.
func TestHeadcount(t *testing.T) {
	const gap, on = false, true
	for name, story := range map[string][]struct {
		second   int
		nodes    int64
		unbroken bool
		want     int64
	}{
		"more are believed at once":        {{0, 1, gap, 1}, {2, 2, on, 2}, {4, 7, on, 7}},
		"a node alone":                     {{0, 1, gap, 1}, {60, 1, gap, 1}},
		"fewer after a life":               {{0, 3, gap, 3}, {2, 2, on, 3}, {10, 2, on, 3}, {11, 2, on, 2}},
		"the most of those that came then": {{0, 5, gap, 5}, {2, 3, on, 5}, {4, 4, on, 5}, {11, 2, on, 4}, {14, 2, on, 4}, {15, 2, on, 2}},
		"a gap begins it anew":             {{0, 3, gap, 3}, {9, 1, on, 3}, {30, 1, gap, 3}, {40, 1, on, 3}, {41, 1, on, 1}},
		"gaps without end":                 {{0, 3, gap, 3}, {20, 1, gap, 3}, {40, 1, gap, 3}, {60, 2, gap, 3}, {71, 2, on, 2}},
		"a gap keeps what was believed":    {{0, 5, gap, 5}, {2, 3, on, 5}, {4, 1, gap, 5}, {14, 1, on, 5}, {15, 1, on, 1}},
	} {
		var h nodeEstimate
		start := time.Now()
		for _, step := range story {
			got := h.addReading(start.Add(time.Duration(step.second)*time.Second), step.nodes, step.unbroken)
			if got != step.want || len(h.readings) > 4 {
				t.Errorf("%s: after %d s %d nodes are believed in, want %d", name, step.second, got, step.want)
			}
		}
	}
}
