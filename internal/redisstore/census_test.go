// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// TestNodesAreCounted: who uses the Redis counts, who has not been there for long does not, and what was counted last stands while
// Redis is away.
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
	if err := server.Client().ZAdd(ctx, censusKey, old).Err(); err != nil {
		t.Fatal(err)
	}
	for _, s := range stores {
		s.CountNodes()
		s.CountNodes()
	}
	await.Until(t, 10*time.Second, "all know of three", func() bool {
		return stores[0].Nodes() == 3 && stores[1].Nodes() == 3 && stores[2].Nodes() == 3
	})
	if ttl := server.Client().PTTL(ctx, censusKey).Val(); ttl <= 0 || ttl > censusTTL {
		t.Errorf("the count lives for %v", ttl)
	}
	limit, err := core.NewLimit(core.FixedWindow, 10, core.Minute, 0)
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	await.Until(t, 10*time.Second, "the breaker opens", func() bool {
		_ = stores[0].Take(ctx, take1("k", &limit), make([]core.Result, 1))
		return stores[0].Stats().Breaker != BreakerClosed
	})
	(&census{store: stores[0], name: "one"}).turn(time.Now())
	if n := stores[0].Nodes(); n != 3 {
		t.Errorf("%d nodes while Redis is away, want what was known", n)
	}
}

// outage has a server crash and come back empty, with nobody asking the store any more.
func outage(t *testing.T, server *redistest.Server, s *Store) {
	t.Helper()
	server.Kill()
	opens(t, s)
	server.Restart()
	eventually(t, "a probe is answered", func() bool { return s.Stats().Breaker == BreakerHalfOpen })
}

// others has more nodes say that they are there.
func others(t *testing.T, server *redistest.Server, names ...string) {
	t.Helper()
	for _, name := range names {
		said := redis.Z{Score: float64(time.Now().Add(time.Minute).UnixMicro()), Member: name} // for as long as the test runs
		if err := server.Client().ZAdd(t.Context(), censusKey, said).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIdleNodesAreCountedAgain: after an outage a node that nobody asks says that it is there, which closes its breaker and charges
// nothing.
func TestIdleNodesAreCountedAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	s.CountNodes()
	eventually(t, "it is counted", func() bool { return s.Nodes() == 1 })
	server.Kill()
	opens(t, s)
	server.Restart()
	eventually(t, "it is counted again", func() bool { return server.Client().ZCard(t.Context(), censusKey).Val() == 1 })
	eventually(t, "the breaker closes", func() bool { return s.Stats().Breaker == BreakerClosed })
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 1 {
		t.Errorf("Redis has %q, want but the census", keys)
	}
}

// TestTurnsTryTheBreaker: an answer closes a half-open breaker, none opens it, and a refusal that is the census' own leaves the trial
// to the next call.
func TestTurnsTryTheBreaker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	c := &census{store: s, name: "me"}
	outage(t, server, s)
	server.Kill()
	if c.turn(time.Now()); s.Stats().Breaker == BreakerHalfOpen || s.Nodes() != 0 {
		t.Errorf("without an answer the breaker is %s, and %d nodes are known of", s.Stats().Breaker, s.Nodes())
	}
	server.Restart()
	eventually(t, "a probe is answered", func() bool { return s.Stats().Breaker == BreakerHalfOpen })
	configure(t, server, "set", censusKey, "of another type")
	if c.turn(time.Now()); s.Stats().Breaker != BreakerHalfOpen || s.Nodes() != 0 {
		t.Errorf("refused, the breaker is %s, and %d nodes are known of", s.Stats().Breaker, s.Nodes())
	}
	configure(t, server, "del", censusKey)
	if c.turn(time.Now()); s.Stats().Breaker != BreakerClosed || s.Nodes() != 1 {
		t.Errorf("answered, the breaker is %s, and %d nodes are known of", s.Stats().Breaker, s.Nodes())
	}
}

// TestShortReturn: a Redis that has forgotten the other nodes, as one that came back empty or after longer than their entries live, is
// believed when it has been there for as long as an entry lives, and not before.
func TestShortReturn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	ready(t, s)
	c, now := &census{store: s, name: "me"}, time.Now()
	believes := func(after time.Duration, want int) {
		t.Helper()
		if c.turn(now.Add(after)); s.Nodes() != want {
			t.Errorf("after %v %d nodes are believed in, want %d", after, s.Nodes(), want)
		}
	}
	others(t, server, "two", "three")
	believes(0, 3)
	configure(t, server, "flushall")
	for after := 2 * time.Second; after <= missingAfter; after += censusEvery {
		believes(after, 3) // nobody has noticed anything
	}
	outage(t, server, s)
	for after := 12 * time.Second; after <= 12*time.Second+missingAfter; after += censusEvery {
		believes(after, 3) // the time begins anew
	}
	believes(24*time.Second, 1)
	others(t, server, "two", "three", "four")
	believes(26*time.Second, 4)
}

// TestCloseWaitsForCounting: a node that begins to count while its store closes is waited for, and one that comes later does not
// begin.
func TestCloseWaitsForCounting(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	closed := make(chan struct{})
	s.counting.Do(func() { // as CountNodes does
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

// TestHeadcount tells what is believed of what Redis said.
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
		var h headcount
		start := time.Now()
		for _, step := range story {
			got := h.saw(start.Add(time.Duration(step.second)*time.Second), step.nodes, step.unbroken)
			if got != step.want || len(h.told) > 4 {
				t.Errorf("%s: after %d s %d nodes are believed in, want %d", name, step.second, got, step.want)
			}
		}
	}
}
