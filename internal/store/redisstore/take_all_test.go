// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// makeCalls returns n calls with one check each, all with different keys.
func makeCalls(n int, limit *counter.Limit) []counter.Call {
	calls := make([]counter.Call, n)
	for i := range calls {
		calls[i] = counter.Call{Checks: take1(fmt.Sprint("rl1:all:", i), limit), Results: make([]counter.Result, 1)}
	}
	return calls
}

// TestManyCallsAreOnePipeline: many calls form one pipeline and each has its own answer, even if
// Redis has lost the script.
func TestManyCallsAreOnePipeline(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	ready(t, s)
	limit := limittest.New(t, "2/1m")
	for name, ctx := range map[string]func() (context.Context, context.CancelFunc){
		"alone":       func() (context.Context, context.CancelFunc) { return context.Background(), func() {} },
		"can be done": func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) },
	} {
		if err := server.Client().FlushAll(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
		for round := range 3 {
			ctx, cancel := ctx()
			if err := server.Client().ScriptFlush(ctx).Err(); err != nil {
				t.Fatal(err)
			}
			before, asked := s.Stats().Batches, server.Calls("evalsha")
			calls := makeCalls(300, limit)
			calls[7].Checks[0].Cost = -1
			calls[8].Checks = nil
			s.TakeAll(ctx, calls)
			cancel()
			for i := range calls {
				call := &calls[i]
				switch {
				case i == 7 && !errors.Is(call.Err, counter.ErrInvalid):
					t.Errorf("%s: call 7: %v", name, call.Err)
				case i != 7 && call.Err != nil:
					t.Errorf("%s: call %d: %v", name, i, call.Err)
				case i != 7 && i != 8 && call.Results[0].Denied != (round == 2):
					t.Errorf("%s: call %d in round %d: %+v", name, i, round, call.Results[0])
				}
			}
			// A dispatcher can begin while calls are still being queued.
			if n := s.Stats().Batches - before; n > 20 {
				t.Errorf("%s: 300 calls went out in %d pipelines, want 3 or so", name, n)
			}
			if n := server.Calls("evalsha") - asked; n < 298 {
				t.Errorf("%s: redis was asked %d times", name, n)
			}
		}
	}
}

// TestTakeAllFailsCallByCall: while Redis does not answer, each call has its own error, and the
// queue's bound is enforced.
func TestTakeAllFailsCallByCall(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: 20 * time.Millisecond, QueueMax: 16})
	ready(t, s)
	server.Pause()
	calls := makeCalls(1000, limittest.New(t, "2/1m"))
	start := time.Now()
	s.TakeAll(context.Background(), calls)
	if took := time.Since(start); took > slowest {
		t.Errorf("it took %s", took)
	}
	kinds := map[string]int{}
	for i := range calls {
		if !errors.Is(calls[i].Err, counter.ErrUnavailable) && !errors.Is(calls[i].Err, counter.ErrOverloaded) {
			t.Fatalf("call %d: %v", i, calls[i].Err)
		}
		kinds[kindOf(calls[i].Err)]++
	}
	if kinds["queue_full"] == 0 || kinds["timeout"] < paceStart {
		t.Error(kinds)
	}
	server.Resume()
	waitUntil(t, "redis is asked again", func() bool {
		calls := makeCalls(3, limittest.New(t, "9/1m"))
		s.TakeAll(context.Background(), calls)
		return calls[0].Err == nil && calls[1].Err == nil && calls[2].Err == nil
	})
}

// BenchmarkTakeAll compares one TakeAll of 64 calls with 64 goroutines that make one call each. The
// metric named servers is the CPU time of Redis.
func BenchmarkTakeAll(b *testing.B) {
	const questions = 64
	server := redistest.Start(b)
	ways := map[string]func(*Store, []counter.Call){
		"together": func(s *Store, calls []counter.Call) { s.TakeAll(context.Background(), calls) },
		"goroutines": func(s *Store, calls []counter.Call) {
			var all sync.WaitGroup
			for i := range calls {
				all.Go(func() { calls[i].Err = s.Take(context.Background(), calls[i].Checks, calls[i].Results) })
			}
			all.Wait()
		},
	}
	for _, name := range []string{"goroutines", "together", "goroutines", "together"} {
		b.Run(name, func(b *testing.B) {
			s := open(b, Options{URL: server.URL(), Timeout: TimeoutMax})
			ready(b, s)
			calls := makeCalls(questions, limittest.New(b, "1000000/1s burst 1000000"))
			ways[name](s, calls)
			before := s.Stats().Batches
			b.ReportAllocs()
			b.ResetTimer()
			cpu, servers := cpuTime(b), server.CPU()
			for range b.N {
				ways[name](s, calls)
			}
			each := float64(b.N * questions)
			b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/1e3/each, "cpu-µs/question")
			b.ReportMetric(float64((server.CPU()-servers).Nanoseconds())/1e3/each, "redis-µs/question")
			b.ReportMetric(float64(s.Stats().Batches-before)/float64(b.N), "pipelines/call")
			for i := range calls {
				if calls[i].Err != nil {
					b.Fatal(calls[i].Err)
				}
			}
		})
	}
}
