// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// slowest is the latest time at which a call with a deadline of 50 ms can return on a busy machine.
const slowest = 2 * time.Second

// traffic is a set of callers. Each charges its own counter again and again, and records the
// outcomes. The limit is never reached, so that the counters finally hold the number of executed
// charges.
type traffic struct {
	store   *Store
	callers int
	limit   *counter.Limit
	checks  func(caller int) []counter.Check
	strict  bool // whether a check counts as possibly charged after every failure
	// pace is the pause between two calls of one caller, so that several servers on one machine are
	// not starved.
	pace time.Duration

	stop    chan struct{}
	wg      sync.WaitGroup
	granted []atomic.Int64 // answered calls by caller
	unknown []atomic.Int64 // calls by caller that failed and might have been executed
	failed  atomic.Int64
	longest atomic.Int64 // nanoseconds
}

// start runs the callers. They pause briefly after each failure that took no time, to leave
// processor time to the server.
func start(t testing.TB, s *Store, callers int) *traffic {
	t.Helper()
	return startPaced(t, s, callers, 0)
}

// startPaced is like start, but the callers pause between their calls.
func startPaced(t testing.TB, s *Store, callers int, pace time.Duration) *traffic {
	t.Helper()
	f := newTraffic(t, s, callers)
	f.pace, f.checks = pace, func(i int) []counter.Check { return take1(key(i), f.limit) }
	f.run()
	return f
}

// startWide starts callers that charge three counters each: two in one slot, and one in another.
func startWide(t testing.TB, s *Store, callers int) *traffic {
	t.Helper()
	f := newTraffic(t, s, callers)
	f.strict, f.pace = true, 2*time.Millisecond
	f.checks = func(i int) []counter.Check {
		return []counter.Check{take1(key(i), f.limit)[0], take1(key(i)+"b", f.limit)[0], take1(key(i+1000), f.limit)[0]}
	}
	f.run()
	return f
}

func newTraffic(t testing.TB, s *Store, callers int) *traffic {
	return &traffic{store: s, callers: callers, limit: limittest.New(t, "1000000000/31d fixed_window"),
		stop: make(chan struct{}), granted: make([]atomic.Int64, callers), unknown: make([]atomic.Int64, callers)}
}

func (f *traffic) run() {
	for i := range f.callers {
		f.wg.Go(func() { f.call(i) })
	}
}

func key(caller int) string { return fmt.Sprintf("rl1:{%d}", caller) }

func (f *traffic) call(i int) {
	// Every other caller has a context that can be canceled, so that both ways into a lane are
	// used.
	ctx := context.Background()
	if i%2 == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
	}
	checks := f.checks(i)
	results := make([]counter.Result, len(checks))
	for {
		select {
		case <-f.stop:
			return
		default:
		}
		if f.pace > 0 {
			<-time.After(f.pace)
		}
		begin := time.Now()
		err := f.store.Take(ctx, checks, results)
		f.time(time.Since(begin))
		var failure *Failure
		switch {
		case err == nil:
			f.granted[i].Add(results[0].Granted)
			continue
		case !errors.As(err, &failure):
			panic(err)
		case f.strict || !failure.Unsent():
			f.unknown[i].Add(1)
		case failure.Kind == KindBreakerOpen:
			select {
			case <-f.stop:
			case <-time.After(time.Millisecond):
			}
		}
		f.failed.Add(1)
	}
}

func (f *traffic) time(took time.Duration) {
	for {
		longest := f.longest.Load()
		if int64(took) <= longest || f.longest.CompareAndSwap(longest, int64(took)) {
			return
		}
	}
}

// traffic.awaitAnswers waits until further calls have been answered.
func (f *traffic) awaitAnswers(t testing.TB) {
	t.Helper()
	target := f.countAnswered() + int64(10*f.callers)
	waitUntil(t, "calls are answered", func() bool { return f.countAnswered() >= target })
}

// traffic.failures waits until n further calls have failed.
func (f *traffic) failures(t testing.TB, n int64) {
	t.Helper()
	target := f.failed.Load() + n
	waitUntil(t, "calls fail", func() bool { return f.failed.Load() >= target })
}

func (f *traffic) countAnswered() (n int64) {
	for i := range f.granted {
		n += f.granted[i].Load()
	}
	return n
}

// traffic.end stops the callers and checks that every call returned by its deadline.
func (f *traffic) end(t testing.TB) {
	t.Helper()
	close(f.stop)
	f.wg.Wait()
	if longest := time.Duration(f.longest.Load()); longest > max(slowest, f.store.settings.timeout) {
		t.Errorf("a call with a deadline of %s took %s", f.store.settings.timeout, longest)
	}
	t.Logf("%d answered, %d failed, the longest call took %s; %+v", f.countAnswered(), f.failed.Load(),
		time.Duration(f.longest.Load()), f.store.Stats())
}

// checkAtMostOnce compares the server's counters with the callers' records. If lost is set, the
// server has lost counters in the meantime.
func (f *traffic) checkAtMostOnce(t testing.TB, server *redistest.Server, lost bool) {
	t.Helper()
	f.atMostOnceIn(t, func(string) *redistest.Server { return server }, lost)
}

// atMostOnceIn is like checkAtMostOnce, but the keys can be on different servers.
func (f *traffic) atMostOnceIn(t testing.TB, of func(key string) *redistest.Server, lost bool) {
	t.Helper()
	for i := range f.callers {
		for _, c := range f.checks(i) {
			keeper := &bareStore{client: of(string(c.Key)).Client()}
			state, _ := keeper.counter(t, c.Key, f.limit)
			f.compare(t, i, state, lost)
		}
	}
}

func (f *traffic) compare(t testing.TB, i int, state counter.State, lost bool) {
	t.Helper()
	granted, unknown := f.granted[i].Load(), f.unknown[i].Load()
	if state.Used > granted+unknown {
		t.Errorf("caller %d: %d charges executed, %d answered, %d unknown: some were executed twice", i, state.Used,
			granted, unknown)
	}
	if !lost && state.Used < granted {
		t.Errorf("caller %d: %d charges executed, %d answered: some were lost", i, state.Used, granted)
	}
}

// traffic.each waits until further calls of every caller have been answered.
func (f *traffic) each(t testing.TB) {
	t.Helper()
	f.eachOf(t, func(int) bool { return true })
}

// eachOf waits until further calls of each of some callers have been answered.
func (f *traffic) eachOf(t testing.TB, some func(caller int) bool) {
	t.Helper()
	targets := map[int]int64{}
	for i := range f.callers {
		if some(i) {
			targets[i] = f.granted[i].Load() + 10
		}
	}
	for i, target := range targets {
		waitUntil(t, fmt.Sprintf("caller %d is answered", i), func() bool { return f.granted[i].Load() >= target })
	}
}

// traffic.calm waits until the store works again, and logs how long that took.
func (f *traffic) calm(t testing.TB, since time.Time) {
	t.Helper()
	f.awaitAnswers(t)
	took := time.Since(since)
	t.Logf("limits held again %s after redis answered", took)
	if took > 10*time.Second { // a breaker that no probe closes is open for 30 s
		t.Errorf("limits held again only %s after redis answered", took)
	}
}

func TestRedisKilledAndRestartedUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	f := start(t, open(t, Options{URL: server.URL()}), 32)
	f.awaitAnswers(t)
	server.Kill()
	f.failures(t, 200)
	server.Restart()
	f.calm(t, time.Now())
	f.end(t)
	f.checkAtMostOnce(t, server, true)
}

func TestRedisStoppedUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	f := start(t, open(t, Options{URL: server.URL()}), 64)
	f.awaitAnswers(t)
	server.Pause()
	waitUntil(t, "the breaker opens", func() bool { return f.store.Stats().Breaker == BreakerOpen })
	f.failures(t, 2000)
	server.Resume()
	f.calm(t, time.Now())
	f.end(t)
	f.checkAtMostOnce(t, server, false)
	executed, known := server.Calls("evalsha")-server.Calls("del"), f.countAnswered() // without the breaker's trials: only they delete keys
	unknown := int64(0)
	for i := range f.unknown {
		unknown += f.unknown[i].Load()
	}
	if executed > known+unknown {
		t.Errorf("redis executed %d calls; %d were answered and %d unknown", executed, known, unknown)
	}
}

func TestClientPauseUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	f := start(t, open(t, Options{URL: server.URL()}), 32)
	f.awaitAnswers(t)
	if err := server.Client().Do(context.Background(), "client", "pause", "600", "all").Err(); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the breaker opens", func() bool { return f.store.Stats().Breaker == BreakerOpen })
	f.awaitAnswers(t)
	f.end(t)
	f.checkAtMostOnce(t, server, false)
}

func TestFlushAllUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	f := start(t, open(t, Options{URL: server.URL(), Timeout: TimeoutMax}), 32)
	f.awaitAnswers(t)
	if err := server.Client().FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	f.awaitAnswers(t)
	f.end(t)
	f.checkAtMostOnce(t, server, true)
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d calls failed: a flush loses counters but no call", n)
	}
}

func TestScriptFlushUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	f := start(t, open(t, Options{URL: server.URL(), Timeout: slowest / 2}), 32)
	for range 5 {
		f.awaitAnswers(t)
		if err := server.Client().ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.awaitAnswers(t)
	f.end(t)
	f.checkAtMostOnce(t, server, false)
	if n := f.failed.Load(); n > 0 {
		t.Errorf("%d calls failed: the script is loaded again and they are sent again", n)
	}
	if n := server.Calls("script|load"); n < 5 {
		t.Errorf("the script was loaded %d times", n)
	}
}

func TestHungRedisCostsAFewDeadlines(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	f := start(t, s, 64)
	f.awaitAnswers(t)
	before := s.Stats().Failures[KindTimeout] // on a busy machine there can be some failures
	server.Pause()
	defer server.Resume()
	waitUntil(t, "the breaker opens", func() bool { return s.Stats().Breaker == BreakerOpen })
	atOpening := s.Stats()
	f.failures(t, 5000)
	f.end(t)
	// Before the breaker opened, each of the 64 callers could time out once per round, and there
	// are at most five failed batches.
	if n := atOpening.Failures[KindTimeout] - before; n > 64*(failuresInRow+3) {
		t.Errorf("%d calls ran into their deadline before the breaker opened, want at most a few for each of 64", n)
	}
	late := s.Stats().Failures[KindTimeout] - atOpening.Failures[KindTimeout]
	if late > 64*2 {
		t.Errorf("%d calls ran into their deadline after the breaker had opened", late)
	}
}

func TestOpenBreakerIsFast(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	server.Pause()
	defer server.Resume()
	limit := limittest.New(t, "10/1m")
	waitUntil(t, "the breaker opens", func() bool {
		_ = s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1))
		return s.Stats().Breaker == BreakerOpen
	})
	begin, refused := time.Now(), 0
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 1000 {
				if err := s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)); err == nil {
					t.Error("a call was answered by a stopped redis")
				}
			}
		})
	}
	wg.Wait()
	refused = 64 * 1000
	took := time.Since(begin)
	t.Logf("%d calls in %s", refused, took)
	if took > 5*time.Second {
		t.Errorf("%d calls took %s with an open breaker", refused, took)
	}
}
