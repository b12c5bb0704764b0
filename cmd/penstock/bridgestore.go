// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/bridge"
	"github.com/penstock/penstock/internal/fallback"
	"github.com/penstock/penstock/internal/leasestore"
	"github.com/penstock/penstock/internal/memstore"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/tally"
)

// openStore fills in the store and what is asked of it for health and metrics.
func (f *bridgeFlags) openStore(o *bridge.Options) (closeStore func() error, err error) {
	o.Registry = prometheus.NewRegistry()
	if !inRedis(&f.redis) {
		if !f.redis.IsZero() {
			return nil, errors.New("--redis-… flags, REDIS_PASSWORD, REDIS_SENTINEL_PASSWORD or REDIS_MASTER are given, and no Redis; write " +
				"--redis redis://localhost:6379, or set REDIS_ADDR or REDIS_ADDRS")
		}
		if !f.remember {
			return nil, errors.New("--remember-denials is for counting in Redis: write --redis redis://localhost:6379, or leave it out")
		}
		store, err := memstore.New(memstore.Options{CountersMax: f.countersMax, BytesMax: f.bytesMax, Logger: o.Logger})
		if err != nil {
			return nil, err
		}
		o.Store = store
		return store.Close, o.Registry.Register(memoryFigures{store})
	}
	if f.countersMax != 0 || f.bytesMax != 0 {
		return nil, errors.New("--counters-max and --bytes-max are for counting in memory; Redis is bounded by its own maxmemory")
	}
	f.redis.Logger = o.Logger
	store, err := redisstore.New(f.redis)
	if err != nil {
		return nil, err
	}
	options := leasestore.Options{Timeout: f.redis.Timeout}
	if !f.remember {
		options.DenialsMax = -1
	}
	leases, err := leasestore.New(store, options)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	memory, err := memstore.New(memstore.Options{Logger: o.Logger})
	if err != nil {
		return nil, errors.Join(err, giveBack(leases), store.Close())
	}
	o.Store, o.Reachable = leases, store.Check
	o.Fallback = fallback.Options{Local: memory, Nodes: store.Nodes, Prepare: store.CountNodes, Known: leases.Used}
	closeStore = func() error { return errors.Join(giveBack(leases), store.Close(), memory.Close()) }
	return closeStore, o.Registry.Register(redisFigures{store, leases})
}

// giveBackTime is how long a bridge that ends may take to give back what it took in advance and has not used. What is not
// given back by then stands as charged.
const giveBackTime = 2 * time.Second

func giveBack(leases *leasestore.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	return leases.Close(ctx)
}

// memoryFigures are those of a store in memory.
type memoryFigures struct{ store *memstore.Store }

// Describe implements [prometheus.Collector].
func (memoryFigures) Describe(ch chan<- *prometheus.Desc) {
	ch <- tally.CountersDesc
	ch <- tally.OverflowsDesc
}

// Collect implements [prometheus.Collector].
func (m memoryFigures) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(tally.CountersDesc, prometheus.GaugeValue, float64(m.store.Len()))
	ch <- prometheus.MustNewConstMetric(tally.OverflowsDesc, prometheus.CounterValue, float64(m.store.Overflows()))
}

// redisFigures are those of a store over Redis, and of what stands before it.
type redisFigures struct {
	store  *redisstore.Store
	leases *leasestore.Store
}

// Describe implements [prometheus.Collector].
func (redisFigures) Describe(ch chan<- *prometheus.Desc) {
	tally.DescribeBreakers(ch)
	tally.DescribeShared(ch)
}

// Collect implements [prometheus.Collector].
func (r redisFigures) Collect(ch chan<- prometheus.Metric) {
	tally.CollectBreakers(ch, r.store)
	tally.CollectShared(ch, r.leases.Stats())
}
