// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestShardsOfACluster: the shards of a counter are in different slots and on several servers.
// Concurrent processes admit no more than the limit, and in the end no less.
func TestShardsOfACluster(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	const shards, processes, clients, count = 8, 3, 4, 2400
	source := policy.Policy{Name: "shop", Rules: []policy.Rule{{Name: "all", PerNone: true, Shards: shards,
		Limits: []counter.Limit{*limittest.New(t, fmt.Sprintf("%d/31d fixed_window", count))}}}}
	var admitted, unknown atomic.Int64
	var group sync.WaitGroup
	for range processes {
		rs, err := core.Compile(source)
		if err != nil {
			t.Fatal(err)
		}
		s := openCluster(t, c, Options{Timeout: TimeoutMax})
		for range clients {
			group.Go(func() { hammer(s, rs, count/processes/clients+shards*processes, &admitted, &unknown) })
		}
	}
	group.Wait()
	if n := admitted.Load(); n > count || n+unknown.Load() < count {
		t.Errorf("%d let through of %d, and of %d nobody knows", n, count, unknown.Load())
	}
	slots, servers := map[int]bool{}, map[*redistest.Server]bool{}
	for shard := range shards {
		key := fmt.Sprintf("rl1:shop:all:{~%d:all}:2678400s:fw", shard)
		slot := c.Slot(key)
		slots[slot], servers[c.Master(slot)] = true, true
		if n, err := c.Client().Exists(t.Context(), key).Result(); err != nil || n != 1 {
			t.Errorf("%s: %d, %v", key, n, err)
		}
	}
	if len(slots) != shards || len(servers) < 2 {
		t.Errorf("%d shards are in %d slots on %d servers", shards, len(slots), len(servers))
	}
}

// hammer makes requests one after the other.
func hammer(s *Store, rs *core.Ruleset, requests int, admitted, unknown *atomic.Int64) {
	var plan core.Plan
	for range requests {
		plan.Reset()
		plan.Add(rs, anonymous{})
		if err := s.Take(context.Background(), plan.Checks(), plan.Results()); err != nil {
			unknown.Add(1) // the call might have been charged
			continue
		}
		if d := plan.Decide(); !d.Denied() {
			admitted.Add(1)
		}
	}
}

// anonymous is a request from a client without an identity.
type anonymous struct{}

func (anonymous) Path() string                 { return "/" }
func (anonymous) Method() string               { return "GET" }
func (anonymous) Host() string                 { return "shop.example" }
func (anonymous) Query() string                { return "" }
func (anonymous) Header(string) (string, bool) { return "", false }
func (anonymous) Attr(string) (string, bool)   { return "", false }
func (anonymous) Peer() netip.Addr             { return netip.Addr{} }
func (anonymous) Remote() netip.Addr           { return netip.Addr{} }
func (anonymous) Now() counter.Micros          { return 0 }
