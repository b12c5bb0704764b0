// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/storetest"
)

// patience bounds the wait for events, which can take long on a busy machine.
const patience = 20 * time.Second

// open returns a store that is closed when the test ends.
func open(t testing.TB, options Options) *Store {
	t.Helper()
	s, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// waitUntil waits until the condition holds.
func waitUntil(t testing.TB, what string, condition func() bool) {
	t.Helper()
	eventually.Until(t, patience, what, condition)
}

// ready waits until the store has its connections, so that the test begins with a working store.
func ready(t testing.TB, s *Store) {
	t.Helper()
	waitUntil(t, "redis answers", func() bool {
		return s.only.Load().client.(*redis.Client).PoolStats().IdleConns >= uint32(s.settings.lanes)
	})
}

// take1 returns a check that charges one unit of a key.
func take1(key string, l *counter.Limit) []counter.Check {
	return []counter.Check{{Key: []byte(key), Limit: l, Cost: 1}}
}

// kindOf returns the kind of a call's failure, or the error's text if it is not a Failure.
func kindOf(err error) string {
	var f *Failure
	if !errors.As(err, &f) {
		return fmt.Sprintf("%v", err)
	}
	return f.Kind.String()
}

func TestStoreExam(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	exam(t, func(t testing.TB) storetest.Subject {
		keeper := bareOn(t, server) // a client that empties the server, and later reads its contents
		s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
		return storetest.Subject{
			Store:   s,
			Pin:     func(now counter.Micros) { s.pinned.Store(int64(now)) },
			Counter: keeper.counter,
			Penalty: keeper.penalty,
		}
	})
}

func TestLimitHoldsUnderConcurrency(t *testing.T) {
	server := redistest.Start(t)
	limit := limittest.New(t, "1000/1d fixed_window")
	var stores []*Store
	for range 3 {
		stores = append(stores, open(t, Options{URL: server.URL(), Timeout: TimeoutMax}))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 48 {
		wg.Go(func() {
			s, n := stores[i%len(stores)], 0
			results := make([]counter.Result, 1)
			for range 50 {
				if err := s.Take(context.Background(), take1("rl1:k", limit), results); err != nil {
					t.Errorf("take: %v", err)
					return
				}
				if !results[0].Denied {
					n++
				}
			}
			mu.Lock()
			admitted += n
			mu.Unlock()
		})
	}
	wg.Wait()
	if admitted != 1000 {
		t.Errorf("%d admitted by 48 callers on 3 stores, want 1000", admitted)
	}
	if calls := server.Calls("evalsha"); calls != 48*50 {
		t.Errorf("redis executed %d calls, %d were made", calls, 48*50)
	}
}

func TestManyChecksAreOneCall(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1m")
	checks := make([]counter.Check, counter.ChecksMax)
	for i := range checks {
		checks[i] = counter.Check{Key: fmt.Appendf(nil, "rl1:%d", i), Limit: limit, Cost: 1}
	}
	if err := s.Take(context.Background(), checks, make([]counter.Result, len(checks))); err != nil {
		t.Fatal(err)
	}
	if calls := server.Calls("evalsha"); calls != 1 {
		t.Errorf("%d checks took %d calls, want 1", len(checks), calls)
	}
}

func TestConcurrentCallsShareBatches(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1m")
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 100 {
				if err := s.Take(context.Background(), take1(fmt.Sprint("rl1:", i), limit), make([]counter.Result, 1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if batches := s.Stats().Batches; batches > 6400/2 {
		t.Errorf("6400 calls of 64 callers went out in %d batches", batches)
	}
}

func TestInvalidChecksAreNotSent(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	limit := limittest.New(t, "10/1m")
	checks := append(take1("rl1:k", limit), take1("rl1:k", limit)...)
	if err := s.Take(context.Background(), checks, make([]counter.Result, 2)); !errors.Is(err, counter.ErrInvalid) {
		t.Errorf("the same key twice: error %v, want core.ErrInvalid", err)
	}
	if err := s.Take(context.Background(), nil, nil); err != nil {
		t.Errorf("no checks: error %v, want none", err)
	}
	if calls := server.Calls("evalsha"); calls != 0 {
		t.Errorf("redis executed %d calls", calls)
	}
}

func TestCanceledCallIsNotSent(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := s.Take(ctx, take1("rl1:k", limittest.New(t, "10/1m")), make([]counter.Result, 1))
	if !errors.Is(err, context.Canceled) || !errors.Is(err, counter.ErrUnavailable) || kindOf(err) != "canceled" {
		t.Errorf("error %v (%s), want one that wraps context.Canceled and core.ErrUnavailable", err, kindOf(err))
	}
	if calls := server.Calls("evalsha"); calls != 0 {
		t.Errorf("redis executed %d calls", calls)
	}
}

func TestNewWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	s := open(t, Options{URL: server.URL()})
	limit := limittest.New(t, "10/1m")
	if err := s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)); !errors.Is(err, counter.ErrUnavailable) {
		t.Fatalf("take without redis: error %v, want core.ErrUnavailable", err)
	}
	server.Restart()
	waitUntil(t, "the store works when redis comes up", func() bool {
		return s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)) == nil
	})
}

func TestRestartWhileIdleCostsNoCall(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	limit := limittest.New(t, "10/1d fixed_window")
	for range 3 {
		results := make([]counter.Result, 1)
		if err := s.Take(context.Background(), take1("rl1:k", limit), results); err != nil {
			t.Fatalf("the first call after a restart: %v", err)
		}
		if results[0].Remaining != 9 {
			t.Errorf("remaining %d after a restart, want 9: redis came up empty", results[0].Remaining)
		}
		server.Restart()
	}
}

func TestCloseAnswersEveryoneAndLeavesNoGoroutine(t *testing.T) {
	server := redistest.Start(t)
	before := countGoroutines()
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax, Lanes: 4})
	limit := limittest.New(t, "10/1m")
	ready(t, s)
	server.Pause()
	defer server.Resume()
	start := time.Now()
	failures := make(chan error, 500)
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range cap(failures) {
		ctx := context.Background() // with such a context, the caller sends its own call if it can
		if i%2 == 0 {
			ctx = cancelable
		}
		go func() {
			failures <- s.Take(ctx, take1("rl1:k", limit), make([]counter.Result, 1))
		}()
	}
	waitUntil(t, "calls are under way", func() bool { return s.Stats().Batches >= 4 })
	s.Close()
	for range cap(failures) {
		if err := <-failures; !errors.Is(err, counter.ErrUnavailable) {
			t.Errorf("a waiting call got the error %v, want core.ErrUnavailable", err)
		}
	}
	if took := time.Since(start); took > TimeoutMax/2 {
		t.Errorf("close took %s: it waited for the calls' deadline", took)
	}
	s.Close()
	if err := s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)); kindOf(err) != "closed" {
		t.Errorf("take after close: %v", err)
	}
	if left := countGoroutines(); left > before {
		t.Errorf("%d goroutines of the store or its client are left, %d were there before:\n%s", left, before, stacks())
	}
}

func TestCloseDuringOutageLeavesNoGoroutine(t *testing.T) {
	server := redistest.Start(t)
	before := countGoroutines()
	server.Kill()
	s := open(t, Options{URL: server.URL()})
	waitUntil(t, "the breaker opens", func() bool {
		_ = s.Take(context.Background(), take1("rl1:k", limittest.New(t, "10/1m")), make([]counter.Result, 1))
		return s.Stats().Breaker == BreakerOpen
	})
	s.Close()
	// The client's own goroutines end soon after it is closed.
	waitUntil(t, "no goroutine of the store or its client is left", func() bool { return countGoroutines() <= before })
}

// countGoroutines counts the goroutines that run code of the store or of go-redis, except those of
// the tests themselves.
func countGoroutines() (n int) {
	for _, stack := range strings.Split(stacks(), "\n\n") {
		if strings.Contains(stack, "redisstore.(*") || strings.Contains(stack, "go-redis") {
			n++
		}
	}
	return n
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

func TestEvictionIsWarnedOf(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "allkeys-lru")
	log := &eventually.Journal{}
	s := open(t, Options{URL: server.URL(), Logger: log.Logger()})
	waitUntil(t, "a warning of the policy", func() bool { return strings.Contains(log.String(), "allkeys-lru") })
	if err := s.Check(context.Background()); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Errorf("check: error %v, want one that asks for noeviction", err)
	}
}

func TestCheckOfAGoodServer(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	if err := s.Check(context.Background()); err != nil {
		t.Errorf("check: %v", err)
	}
}

func TestCheckVersion(t *testing.T) {
	for version, want := range map[string]bool{"2.8.19": false, "5.0.14": false, "6.0.16": false, "6.2.0": true,
		"6.2.14": true, "7.0.15": true, "8.2.1": true, "10.0.0": true, "": true, "unstable": true} {
		if err := checkVersion(version); (err == nil) != want {
			t.Errorf("version %q: error %v", version, err)
		}
	}
}

func TestTakeAllocations(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	checks, results := take1("rl1:k", limittest.New(t, "10/1m burst 5")), make([]counter.Result, 1)
	ctx := context.Background()
	allocations := testing.AllocsPerRun(200, func() {
		if err := s.Take(ctx, checks, results); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%v allocations per call of one caller, its whole batch included", allocations)
	if allocations > 30 {
		t.Errorf("%v allocations per call, want at most 30", allocations)
	}
}
