// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// BenchmarkTake measures one token bucket check over Redis: decisions per second, and CPU time of
// this process per decision. The benchmark compares callers that send their own calls, callers
// whose context can be canceled (a lane's goroutine sends their calls), and plain go-redis, which
// sends the same script, one call at a time.
func BenchmarkTake(b *testing.B) {
	server := redistest.Start(b)
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("store/%d", callers), func(b *testing.B) {
			s := open(b, Options{URL: server.URL(), Timeout: TimeoutMax})
			ready(b, s)
			decide(b, callers, s.Take)
		})
		b.Run(fmt.Sprintf("cancelable/%d", callers), func(b *testing.B) {
			s := open(b, Options{URL: server.URL(), Timeout: TimeoutMax})
			ready(b, s)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			decide(b, callers, func(_ context.Context, checks []counter.Check, results []counter.Result) error {
				return s.Take(ctx, checks, results)
			})
		})
		b.Run(fmt.Sprintf("go-redis/%d", callers), func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Network: "unix", Addr: server.Addr, MaxRetries: -1, PoolSize: 64})
			defer client.Close()
			decide(b, callers, (&bareStore{client: client}).Take)
		})
	}
}

// BenchmarkLanes shows the effect of the number of lanes.
func BenchmarkLanes(b *testing.B) {
	server := redistest.Start(b)
	for _, callers := range []int{1, 16, 64, 256} {
		for _, lanes := range []int{1, 2, 3, 4} {
			b.Run(fmt.Sprintf("callers=%d/lanes=%d", callers, lanes), func(b *testing.B) {
				s := open(b, Options{URL: server.URL(), Timeout: TimeoutMax, Lanes: lanes})
				ready(b, s)
				before := s.Stats().Batches
				decide(b, callers, s.Take)
				b.ReportMetric(float64(b.N)/float64(s.Stats().Batches-before), "calls/batch")
			})
		}
	}
}

// decide makes b.N decisions in total with the given number of callers, and reports rate and CPU
// time.
func decide(b *testing.B, callers int, take func(context.Context, []counter.Check, []counter.Result) error) {
	limit := limittest.New(b, "1000000/1s burst 1000000")
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	start, cpu := time.Now(), cpuTime(b)
	for range callers {
		wg.Go(func() {
			checks, results := take1("rl1:bench:api:{user:u_42}:1s:tb", limit), make([]counter.Result, 1)
			for left.Add(-1) >= 0 {
				if err := take(context.Background(), checks, results); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "decisions/s")
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/1e3/float64(b.N), "cpu-µs/decision")
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
