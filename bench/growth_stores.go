// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/redisstore"
)

// redisClientsQuick is the largest number of clients in a quick run, because writing ten million
// takes minutes.
const redisClientsQuick = 1_000_000

// growthOfClients measures how the cost of a decision grows with the number of clients, in memory
// and over Redis. Each client has a token bucket.
func growthOfClients(o options, s *section) error {
	limit, err := counter.NewLimit(counter.TokenBucket, 1_000_000, counter.Hour, 0)
	if err != nil {
		return err
	}
	sizes := []int{1_000, 10_000, 100_000, 1_000_000, 10_000_000}
	inMemory := &chart{title: "A decision, by the number of clients", across: "clients, one of which is chosen at random"}
	var works []func() int
	for _, n := range sizes {
		store, err := memstore.New(memstore.Options{CountersMax: 2 * n})
		if err != nil {
			return err
		}
		fillMemory(store, &limit, n)
		works = append(works, random(store, &limit, n))
		inMemory.steps = append(inMemory.steps, tenfold(n))
	}
	inMemory.series = append(inMemory.series, series{"in memory, ns", inTurn(o, works)})
	over := series{name: "CPU of Redis, ns"}
	for _, n := range sizes {
		if o.quick && n > redisClientsQuick {
			break
		}
		nanos, err := overManyClients(o, &limit, n)
		if err != nil {
			return err
		}
		over.values = append(over.values, nanos)
	}
	inMemory.series = append(inMemory.series, over)
	inMemory.table(s, "%.0f")
	if err := inMemory.beside(0).write(o, s); err != nil {
		return err
	}
	memory := &inMemory.series[0]
	s.say("\nFrom a thousand clients to %s, a decision in memory becomes %.1f × as expensive, because counters no longer fit\n"+
		"into the processor's caches. Redis takes %.1f × from a thousand to %s.\n", tenfold(sizes[len(sizes)-1]), memory.times(), over.times(), tenfold(sizes[len(over.values)-1]))
	return nil
}

// chart.beside returns a copy of the chart in which the values of each series are divided by its
// value at the given step.
func (c *chart) beside(step int) *chart {
	relative := *c
	relative.up, relative.series = "× of what it costs with "+c.steps[step], nil
	for _, one := range c.series {
		name, _, _ := strings.Cut(one.name, ",")
		scaled := series{name: name}
		for _, v := range one.values {
			scaled.values = append(scaled.values, v/one.values[step])
		}
		relative.series = append(relative.series, scaled)
	}
	return &relative
}

func fillMemory(store counter.Store, limit *counter.Limit, n int) {
	var checks [1]counter.Check
	var results [1]counter.Result
	var key [64]byte
	for i := range n {
		checks[0] = counter.Check{Key: clientKey(key[:0], i), ScopeLen: len("rl1:bench:one:"), Limit: limit, Cost: 1}
		if err := store.Take(context.Background(), checks[:], results[:]); err != nil {
			panic(err) // a store in memory does not fail
		}
	}
}

// overManyClients returns the CPU time, in nanoseconds, that Redis takes for a decision about one
// of n clients.
func overManyClients(o options, limit *counter.Limit, n int) (float64, error) {
	b, err := newBench(o)
	if err != nil {
		return 0, err
	}
	defer b.close()
	server, address, err := b.redis()
	if err != nil {
		return 0, err
	}
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + address, Timeout: 5 * time.Second})
	if err != nil {
		return 0, err
	}
	b.closers = append(b.closers, func() { store.Close() })
	if err := fillRedis(store, limit, n); err != nil {
		return 0, err
	}
	s := &system{processes: []*process{server}, load: func(span time.Duration, connections int) (int, figures, error) {
		return decisions(span, connections, func(ctx context.Context, _, _ int) (bool, error) {
			checks := [1]counter.Check{{Key: clientKey(nil, rand.IntN(n)), ScopeLen: len("rl1:bench:one:"), Limit: limit, Cost: 1}}
			var results [1]counter.Result
			return true, store.Take(ctx, checks[:], results[:])
		})
	}}
	if err := interleaved(o, []*system{s}, callers); err != nil {
		return 0, err
	}
	return 1e3 * of(s.seen, totalCPU), nil
}

// fillRedis sends one check for each of n clients, with several checks in a call.
func fillRedis(store counter.Store, limit *counter.Limit, n int) error {
	const together = 16
	failures := make([]error, 16)
	var wait sync.WaitGroup
	for w := range failures {
		wait.Go(func() {
			for first := w * together; first < n; first += len(failures) * together {
				checks, results := make([]counter.Check, 0, together), make([]counter.Result, together)
				for i := first; i < min(n, first+together); i++ {
					checks = append(checks, counter.Check{Key: clientKey(nil, i), ScopeLen: len("rl1:bench:one:"), Limit: limit, Cost: 1})
				}
				if failures[w] = store.Take(context.Background(), checks, results[:len(checks)]); failures[w] != nil {
					return
				}
			}
		})
	}
	wait.Wait()
	for _, err := range failures {
		if err != nil {
			return err
		}
	}
	return nil
}

// growthOfNodes measures how the cost of a decision grows with the number of nodes that share one
// Redis. The checks of all nodes are for the same client.
func growthOfNodes(o options, s *section) error {
	c := &chart{title: "CPU of a decision, by the number of nodes on one Redis", across: "nodes", up: "µs of CPU a decision, nodes and Redis together"}
	ways := []struct {
		name  string
		lease bool
	}{{"exact", false}, {"leased", true}}
	var all []*contender
	for _, way := range ways {
		for _, nodes := range doubled {
			start := library([]string{"evalsha"}, ourStore(way.lease, oneClient))
			all = append(all, &contender{name: fmt.Sprintf("%s, %d", way.name, nodes), unasked: true, start: func(b *bench, limit, _ int) (*system, error) {
				sys, err := start(b, limit, nodes)
				if err != nil {
					return nil, err
				}
				sys.load = func(span time.Duration, connections int) (int, figures, error) {
					return decisions(span, connections, func(_ context.Context, caller, _ int) (bool, error) { return sys.nodes[caller%nodes]() })
				}
				return sys, nil
			}})
		}
	}
	if err := compare(o, all, callers); err != nil {
		return err
	}
	for _, n := range doubled {
		c.steps = append(c.steps, fmt.Sprint(n))
	}
	s.table("", "decisions/s", "µs of CPU a decision", "of it", "Redis calls a decision", "admitted of 1,000 allowed")
	for i, way := range ways {
		one := series{name: way.name}
		for j, nodes := range doubled {
			k := all[i*len(doubled)+j]
			admitted, err := (&contender{start: library([]string{"evalsha"}, ourStore(way.lease, oneClient))}).admits(o, nodes)
			if err != nil {
				return err
			}
			seen := k.seen.seen
			one.values = append(one.values, of(seen, totalCPU))
			s.row(k.name, thousands(of(seen, perSecond)), fmt.Sprintf("%.2f", of(seen, totalCPU)), k.seen.parts(), small(of(seen, redisUsed)), admitted)
		}
		c.series = append(c.series, one)
	}
	if err := c.write(o, s); err != nil {
		return err
	}
	s.say("\nEight nodes cost %.2f × one for each exact decision, and %.2f × leased. With a call for each request, all nodes share\n"+
		"the capacity of one Redis; with leases, Redis is nearly idle with any number of nodes.\n", c.series[0].times(), c.series[1].times())
	return nil
}
