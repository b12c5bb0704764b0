// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
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
	stores[0].enroll("one")
	if n := stores[0].Nodes(); n != 3 {
		t.Errorf("%d nodes while Redis is away, want what was known", n)
	}
}
