// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// patience is the timeout of stores. It is long because, with 64 busy callers, some time may pass
// before an answer is read.
const patience = 10 * time.Second

// decide is a function that makes one decision. Its arguments caller and turn select the client.
type decide func(ctx context.Context, caller, turn int) (admitted bool, err error)

// decisions calls the function d concurrently from many callers, for the duration span.
func decisions(span time.Duration, callers int, d decide) (requests int, f figures, err error) {
	var done atomic.Int64
	var failed atomic.Value
	var wait sync.WaitGroup
	begin := time.Now()
	for caller := range callers {
		wait.Go(func() {
			n := 0
			defer func() { done.Add(int64(n)) }()
			for turn := 0; ; turn++ {
				if turn%16 == 0 { // reading the clock costs as much as some decisions
					if time.Since(begin) >= span {
						return
					}
					// Without this call, a caller whose decisions never block would starve the
					// other callers, which does not happen in a server.
					runtime.Gosched()
				}
				if _, err := d(context.Background(), caller, turn); err != nil {
					failed.Store(err)
					return
				}
				n++
			}
		})
	}
	wait.Wait()
	if err, ok := failed.Load().(error); ok {
		return 0, f, err
	}
	took := time.Since(begin).Seconds()
	rate := float64(done.Load()) / took
	// Each caller waits for its decision before the next, so the mean latency follows from the
	// rate.
	return int(done.Load()), figures{perSecond: rate, p50: time.Duration(float64(callers) / rate * 1e9)}, nil
}

// itself returns the benchmark's own process, in which libraries run.
func itself() *process { return &process{name: "client"} }

// library returns a function that starts several nodes in which a library runs: each node has its
// own client, and all clients use the same Redis.
func library(sends []string, client func(b *bench, address string, limit, node int) (decide, error)) func(*bench, int, int) (*system, error) {
	return func(b *bench, limit, nodes int) (*system, error) {
		store, address, err := b.redis()
		if err != nil {
			return nil, err
		}
		s := &system{redis: address, sends: sends, processes: []*process{itself(), store}}
		for node := range nodes {
			d, err := client(b, address, limit, node)
			if err != nil {
				return nil, err
			}
			s.load = func(span time.Duration, connections int) (int, figures, error) {
				return decisions(span, connections, d)
			}
			s.nodes = append(s.nodes, func() (bool, error) { return d(context.Background(), 0, 0) })
		}
		return s, nil
	}
}

// redisRate returns a function that decides with redis_rate.
func redisRate(b *bench, address string, limit, _ int) (decide, error) {
	client := redis.NewClient(&redis.Options{Addr: address})
	b.closers = append(b.closers, func() { client.Close() })
	limiter := redis_rate.NewLimiter(client)
	return func(ctx context.Context, caller, turn int) (bool, error) {
		r, err := limiter.Allow(ctx, "client", redis_rate.PerHour(limit))
		return err == nil && r.Allowed > 0, err
	}, nil
}

// ourStore returns a function that decides with Penstock's store, with leases if lease is set.
func ourStore(lease bool, key func(caller, turn int) string) func(b *bench, address string, limit, _ int) (decide, error) {
	return func(b *bench, address string, limit, _ int) (decide, error) {
		shared, err := redisstore.New(redisstore.Options{URL: "redis://" + address, Timeout: patience})
		if err != nil {
			return nil, err
		}
		b.closers = append(b.closers, func() { shared.Close() })
		l, err := counter.NewLimit(counter.TokenBucket, int64(limit), counter.Hour, 0)
		if err != nil {
			return nil, err
		}
		if !lease {
			return takeOne(shared, &l, false, key), nil
		}
		leased, err := leasestore.New(shared, leasestore.Options{Timeout: patience})
		if err != nil {
			return nil, err
		}
		b.closers = append([]func(){func() { _ = leased.Close(context.Background()) }}, b.closers...)
		return takeOne(leased, &l, true, key), nil
	}
}

// oneClient returns the key of the same client each time.
func oneClient(int, int) string { return "rl1:bench:one:{ip:192.0.2.7}:3600s:tb" }

func takeOne(store counter.Store, limit *counter.Limit, lease bool, key func(caller, turn int) string) decide {
	return func(ctx context.Context, caller, turn int) (bool, error) {
		checks := [1]counter.Check{{Key: []byte(key(caller, turn)), ScopeLen: len("rl1:bench:one:"), Limit: limit, Cost: 1, Lease: lease}}
		var results [1]counter.Result
		err := store.Take(ctx, checks[:], results[:])
		return results[0].Granted > 0, err
	}
}

// storeThroughput compares libraries that count in Redis.
func storeThroughput(o options, s *section) error {
	theirs := &contender{name: "redis_rate", start: library([]string{"evalsha"}, redisRate)}
	ours := &contender{name: "Penstock's store", start: library([]string{"evalsha"}, ourStore(false, oneClient))}
	leased := &contender{name: "Penstock's store, leased", start: library([]string{"evalsha"}, ourStore(true, oneClient))}
	all := []*contender{theirs, ours, leased}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	describe(s, all)
	rate := of(ours.seen.seen, perSecond) / of(theirs.seen.seen, perSecond)
	cpu := of(ours.seen.seen, firstCPU) / of(theirs.seen.seen, firstCPU)
	s.targets(fmt.Sprintf("Exact, Penstock's store makes %.2f × the decisions of redis_rate (%s) at %.2f × its CPU of the client (%s).",
		rate, against(rate >= 1.2, "1.2 ×"), cpu, against(cpu <= 0.5, "0.5 ×")))
	return nil
}
