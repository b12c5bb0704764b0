// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redisstore"
)

const callers = 64

// startRedis starts a redis-server on a port of its own and returns its address.
func startRedis() (address string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return "", nil, err
	}
	port, err := freePort()
	if err != nil {
		return "", nil, err
	}
	server := exec.Command("redis-server", "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "",
		"--appendonly", "no", "--dir", dir, "--logfile", filepath.Join(dir, "log"))
	if err := server.Start(); err != nil {
		return "", nil, fmt.Errorf("starting redis-server: %w", err)
	}
	stop = func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		_ = os.RemoveAll(dir)
	}
	address = fmt.Sprintf("127.0.0.1:%d", port)
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	for deadline := time.Now().Add(5 * time.Second); client.Ping(context.Background()).Err() != nil; {
		if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("redis-server did not answer at %s", address)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return address, stop, nil
}

// decide is one decision of a variant: caller and turn tell the clients apart.
type decide func(ctx context.Context, caller, turn int) error

// throughput runs decide from many callers for a while and returns decisions per second and client CPU per decision.
func throughput(span time.Duration, callers int, d decide) (perSecond float64, cpu time.Duration, err error) {
	var done atomic.Int64
	var failed atomic.Value
	var wait sync.WaitGroup
	begin, cpuBegin := time.Now(), ownCPU()
	for caller := range callers {
		wait.Go(func() {
			for turn := 0; time.Since(begin) < span; turn++ {
				if err := d(context.Background(), caller, turn); err != nil {
					failed.Store(err)
					return
				}
				done.Add(1)
			}
		})
	}
	wait.Wait()
	if err, ok := failed.Load().(error); ok {
		return 0, 0, err
	}
	n := done.Load()
	return float64(n) / time.Since(begin).Seconds(), (ownCPU() - cpuBegin) / time.Duration(n), nil
}

// storeThroughput compares one token bucket decision over one Redis: Penstock, redis_rate, and a bare EVALSHA.
func storeThroughput(o options) error {
	address, stop, err := startRedis()
	if err != nil {
		return err
	}
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	store, err := redisstore.New(redisstore.Options{URL: "redis://" + address, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer store.Close()

	rate := redis_rate.NewLimiter(client)
	variants := []struct {
		name string
		d    decide
	}{
		{"redis_rate", func(ctx context.Context, caller, turn int) error {
			_, err := rate.Allow(ctx, clientKey(caller, turn), redis_rate.PerMinute(1_000_000))
			return err
		}},
		{"penstock", takeOne(store)},
	}
	perSecond, cpu := make([][]float64, len(variants)), make([][]float64, len(variants))
	for range o.rounds {
		for i, v := range variants {
			n, c, err := throughput(o.round, callers, v.d)
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			perSecond[i], cpu[i] = append(perSecond[i], n), append(cpu[i], float64(c.Nanoseconds())/1e3)
		}
	}
	fmt.Printf("\n## One token bucket over one Redis, %d callers, 10,000 clients\n\n", callers)
	fmt.Println("| | decisions/s | client CPU µs/decision | throughput × redis_rate | CPU × redis_rate |")
	fmt.Println("|---|---|---|---|---|")
	for i, v := range variants {
		fmt.Printf("| %s | %.0f | %.1f | %.2f | %.2f |\n", v.name, median(perSecond[i]), median(cpu[i]),
			median(perSecond[i])/median(perSecond[0]), median(cpu[i])/median(cpu[0]))
	}
	return nil
}

func clientKey(caller, turn int) string {
	return "rl1:bench:one:{ip:192.0." + strconv.Itoa(caller) + "." + strconv.Itoa(turn%156) + "}:60s:tb"
}

func takeOne(store core.Store) decide {
	limit, err := core.NewLimit(core.TokenBucket, 1_000_000, core.Minute, 0)
	if err != nil {
		panic(err) // the numbers above are right or the benchmark is wrong
	}
	return func(ctx context.Context, caller, turn int) error {
		checks := [1]core.Check{{Key: []byte(clientKey(caller, turn)), ScopeLen: len("rl1:bench:one:"), Limit: &limit, Cost: 1}}
		var results [1]core.Result
		return store.Take(ctx, checks[:], results[:])
	}
}
