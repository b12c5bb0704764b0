// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/penstock/penstock/internal/store/fallback"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// Pool lets stores of one process count together while Redis does not answer, if they keep their
// counters in the same place. So after a change of settings, for example of the timeout, the store
// of the new configuration continues with the same counts. The zero Pool is ready for use. A Pool
// is safe for concurrent use.
//
// The servers, as the options spell them, name the place of a counter: see
// [redisstore.Store.Places]. What the pool remembers of a place is lost when the last store of the
// place closes.
type Pool struct {
	mu     sync.Mutex
	places []*place
}

// place is what the process remembers of the counters in one place.
type place struct {
	names   []string
	stores  []*redisstore.Store // the open stores; guarded by the lock of the pool
	memory  *memstore.Store
	counts  *fallback.Counts
	reports *leasestore.Reports
	nodes   atomic.Int64 // the last known number of nodes, for stores that do not know it; 0 means unknown
}

// Pool.open returns the place of a store's counters. The caller must later call Pool.leave with the
// place and the store.
func (p *Pool) open(redis *redisstore.Store, logger *slog.Logger) (*place, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := redis.Places()
	for _, known := range p.places {
		if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(known.names, name) }) {
			known.reopen(redis, names)
			return known, nil
		}
	}
	memory, err := memstore.New(memstore.Options{Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("store redis: %w", err)
	}
	added := &place{names: names, stores: []*redisstore.Store{redis}, memory: memory, counts: fallback.NewCounts(memory),
		reports: leasestore.NewReports(nil)}
	p.places = append(p.places, added)
	return added, nil
}

// reopen adds a store to a place. The store might not reach Redis, so it continues with the number
// of nodes that the other stores know. The caller holds the lock of the pool.
func (p *place) reopen(redis *redisstore.Store, names []string) {
	p.rememberNodes()
	p.stores = append(p.stores, redis)
	for _, name := range names {
		if !slices.Contains(p.names, name) {
			p.names = append(p.names, name)
		}
	}
}

// rememberNodes remembers the greatest number of nodes that a store of the place knows. A store
// whose rules do not need the number does not know it. The caller holds the lock of the pool.
func (p *place) rememberNodes() {
	most := 0
	for _, s := range p.stores {
		most = max(most, s.Nodes())
	}
	if most > 0 {
		p.nodes.Store(int64(most))
	}
}

// Pool.leave ends a store's use of a place. If it was the last store of the place, leave forgets
// the place.
func (p *Pool) leave(left *place, redis *redisstore.Store) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	left.rememberNodes()
	left.stores = slices.DeleteFunc(left.stores, func(other *redisstore.Store) bool { return other == redis })
	if len(left.stores) > 0 {
		return nil
	}
	p.places = slices.DeleteFunc(p.places, func(other *place) bool { return other == left })
	return left.memory.Close()
}

// nodesOf returns a function that returns the number of nodes according to redis. If redis does not
// know the number, the function returns the last one that a store of the place knew.
func (p *place) nodesOf(redis *redisstore.Store) func() int {
	return func() int {
		if n := redis.Nodes(); n > 0 {
			return n
		}
		return int(p.nodes.Load())
	}
}
