// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/store"
)

// openStore opens the store that the flags describe and adds it, its health and its metrics to the
// bridge's options. The caller closes the store.
func (f *bridgeFlags) openStore(o *bridge.Options) (*store.Store, error) {
	if err := f.checkMisplaced(); err != nil {
		return nil, err
	}
	o.Registry, o.Metrics = prometheus.NewRegistry(), metrics.New()
	o.Outages = enforce.NewOutages(o.Logger)
	options := store.Options{CountersMax: f.countersMax, BytesMax: f.bytesMax, ForgetDenials: !f.remember, Logger: o.Logger,
		Failed: func(err error) {
			o.Metrics.StoreFailed(err)
			o.Outages.Failed(err)
		}}
	if namesServer(&f.redis) {
		url, err := fillIn(f.redis.URL)
		if err != nil {
			return nil, fmt.Errorf("--redis: %w", err)
		}
		f.redis.URL, options.Redis = url, &f.redis
	}
	opened, err := store.Open(options)
	if err != nil {
		return nil, err
	}
	o.Store, o.Corrections, o.Loans = opened.Requests, opened.Corrections, opened.Loans
	if opened.Redis != nil {
		o.Reachable, o.Nodes, o.ShareSecret = opened.Redis.Check, opened.Redis.Nodes, opened.Redis.SharedSecret
		o.Problems = opened.Problems
		o.Follow = fleet.In(opened.Redis)
		o.Others = func(ctx context.Context) (*fleet.Reading, error) { return fleet.Read(ctx, opened.Redis) }
		o.OpenDirectory = func() (*directory.Directory, error) {
			return directory.Open(directory.Options{Source: redisdir.New(opened.Redis), ClientsMax: f.clientsMax, Timeout: f.redis.Timeout,
				Logger: o.Logger, KeyUsed: o.Meter.NoteKey})
		}
	}
	figures := metrics.Stores(func(yield func(*store.Store) bool) { yield(opened) })
	for _, c := range append(metrics.EventsOf(o.Events), figures) {
		if err := o.Registry.Register(c); err != nil {
			return nil, errors.Join(err, opened.Close())
		}
	}
	return opened, nil
}

// checkMisplaced returns an error if flags are given that do not apply to the kind of store.
func (f *bridgeFlags) checkMisplaced() error {
	switch redis := namesServer(&f.redis); {
	case redis && (f.countersMax != 0 || f.bytesMax != 0):
		return errors.New("--counters-max and --bytes-max are for counting in memory; Redis is bounded by its own maxmemory")
	case redis:
		return nil
	case !f.redis.IsZero():
		return errors.New("--redis-… flags, REDIS_PASSWORD, REDIS_SENTINEL_PASSWORD or REDIS_MASTER are given without a Redis; write " +
			"--redis redis://localhost:6379, or set REDIS_ADDR or REDIS_ADDRS")
	case f.clientsMax != 0:
		return errors.New("--clients-max is for the directory of clients in Redis: write --redis redis://localhost:6379, or leave it out")
	case !f.remember:
		return errors.New("--remember-denials is for counting in Redis: write --redis redis://localhost:6379, or leave it out")
	}
	return nil
}
