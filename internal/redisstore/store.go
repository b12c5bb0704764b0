// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/lua"
)

// Store keeps counters in one Redis. Make one with [New] and end it with [Store.Close]. Safe for concurrent use.
type Store struct {
	settings settings
	dialer   *dialer
	client   *redis.Client
	queue    chan *call
	idle     chan *lane    // lanes that nobody uses
	checking chan struct{} // holds one: a Check is under way
	breaker  breaker
	reporter reporter
	calls    sync.Pool // of *call
	batches  atomic.Uint64
	pinned   atomic.Int64 // core.Micros; not 0 only in tests: the instant to decide at

	ctx     context.Context // ends when the store closes
	cancel  context.CancelFunc
	running sync.WaitGroup
	opened  chan struct{} // wakes the watch when the breaker opens
	closing sync.Once
}

var _ core.Store = (*Store)(nil)

// New checks all the options and returns a store that is ready at once: it connects in the background, and Redis may come
// up later. The error lists everything that is wrong with the options. The caller must call [Store.Close].
func New(options Options) (*Store, error) {
	settings, err := options.settings()
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	s := &Store{
		settings: settings,
		queue:    make(chan *call, settings.queueMax),
		opened:   make(chan struct{}, 1),
		checking: make(chan struct{}, 1),
		reporter: reporter{logger: settings.logger, server: settings.address.String(), start: time.Now()},
	}
	s.calls.New = newCall
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.breaker.changed = s.breakerChanged
	s.dialer = newDialer(settings.address, settings.tls)
	s.client = redis.NewClient(s.clientOptions())
	s.idle = make(chan *lane, settings.lanes)
	for range settings.lanes {
		s.idle <- newLane(s)
		s.running.Go(s.dispatch)
	}
	s.running.Go(s.watch)
	return s, nil
}

// clientOptions turns off everything in go-redis that would send a command twice, wait on its own account, or start a
// goroutine.
func (s *Store) clientOptions() *redis.Options {
	a := &s.settings.address
	return &redis.Options{
		Network:  a.network,
		Addr:     a.target,
		Username: a.username,
		Password: a.password,
		DB:       a.database,
		Dialer:   s.dialer.open,
		Protocol: 2, // pushed messages would be looked for before every reply
		OnConnect: func(ctx context.Context, conn *redis.Conn) error {
			// Scripts loaded this way are never evicted, as those of EVAL are.
			return conn.ScriptLoad(ctx, lua.Take).Err()
		},
		MaxRetries:            -1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		ReadTimeout:           TimeoutMax, // the batch's own deadline always comes first
		WriteTimeout:          TimeoutMax,
		// The lanes' own, as many that the watch warms up beside them, and one for Check: a lane never waits for one.
		PoolSize:         2*s.settings.lanes + 1,
		MaxIdleConns:     s.settings.lanes,
		PipelinePoolSize: -1, // lanes use the connections that were warmed up
		DisableIdentity:  true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	}
}

// Take implements [core.Store]. It returns at the latest when the store's timeout has passed or ctx is done. Every error
// is an error of core.ValidateChecks or a [*Failure].
//
// A ctx that cannot be done saves two goroutine switches when Redis is idle: pass context.WithoutCancel where giving up
// early wins nothing.
func (s *Store) Take(ctx context.Context, checks []core.Check, results []core.Result) error {
	if err := core.ValidateChecks(checks, results); err != nil {
		return err
	}
	if len(checks) == 0 {
		return nil
	}
	c, failure := s.admit(ctx, checks)
	if failure == nil {
		failure = s.carry(ctx, c)
	}
	if failure != nil {
		return s.fail(failure)
	}
	return s.read(c, checks, results)
}

// admit makes a call of checks, unless there is no sense in sending it.
func (s *Store) admit(ctx context.Context, checks []core.Check) (*call, *Failure) {
	if ctx.Err() != nil {
		return nil, gaveUp(ctx)
	}
	admitted, trial := s.breaker.admit()
	switch {
	case s.ctx.Err() != nil:
		return nil, errClosed
	case !admitted:
		return nil, errBreakerOpen
	}
	c := s.calls.Get().(*call)
	c.prepare(ctx, s.settings.timeout, trial)
	c.cmd = newTake(context.Background(), core.Micros(s.pinned.Load()), checks)
	return c, nil
}

// read takes the results out of a call that was answered, and ends it.
func (s *Store) read(c *call, checks []core.Check, results []core.Result) error {
	err := c.cmd.results(checks, results)
	s.recycle(c)
	if err != nil {
		return s.fail(&Failure{Kind: KindScript, Cause: err})
	}
	return nil
}

// carry has the call sent and waits for its end. If the result is nil, the call was answered and belongs to the caller;
// otherwise the caller must not touch it any more.
func (s *Store) carry(ctx context.Context, c *call) *Failure {
	if ctx.Done() == nil && len(s.queue) == 0 {
		select {
		case l := <-s.idle:
			l.batchOne(c, time.Now(), c.deadline)
			s.idle <- l
			<-c.done
			return s.outcome(c)
		default:
		}
	}
	if !s.enqueue(c) {
		return errQueueFull
	}
	return s.wait(ctx, c)
}

// enqueue leaves a call to the dispatchers, if there is room; otherwise it ends it.
func (s *Store) enqueue(c *call) bool {
	c.timer.Reset(s.settings.timeout)
	select {
	case s.queue <- c:
		return true
	default:
		s.drop(c)
		return false
	}
}

// wait returns nil when the call was answered; it then belongs to the caller again. Otherwise it belongs to the lane,
// now or when a lane comes to it.
func (s *Store) wait(ctx context.Context, c *call) *Failure {
	var failure *Failure
	select {
	case <-c.done:
		return s.outcome(c)
	case <-c.timer.C:
		failure = errTimeout
	case <-ctx.Done():
		failure = gaveUp(ctx)
	case <-s.ctx.Done():
		failure = errClosed
	}
	c.timer.Stop()
	if c.leave() {
		return failure
	}
	<-c.done // the answer came in this very moment
	return s.outcome(c)
}

func (s *Store) outcome(c *call) *Failure {
	c.timer.Stop()
	if failure := c.failure; failure != nil {
		s.recycle(c)
		return failure
	}
	return nil
}

// fail counts and, at a bounded rate, logs a failed call.
func (s *Store) fail(f *Failure) error {
	s.reporter.failed(time.Now(), f, 1)
	return f
}

// drop ends a call that will not be sent.
func (s *Store) drop(c *call) {
	if c.trial {
		s.breaker.release()
	}
	c.timer.Stop()
	s.recycle(c)
}

func (s *Store) recycle(c *call) {
	c.cmd, c.failure = nil, nil
	s.calls.Put(c)
}

// breakerChanged is called under the breaker's lock.
func (s *Store) breakerChanged(state BreakerState) {
	s.reporter.changed(time.Now(), state)
	if state == BreakerOpen {
		select {
		case s.opened <- struct{}{}:
		default:
		}
	}
}

// Close answers everyone who waits with an error, closes the connections and returns when no goroutine of the store is
// left. It may be called more than once. Its error is always nil; it is there for io.Closer.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.cancel()
		s.dialer.close() // ends what lanes and watch are waiting for
		s.running.Wait()
		for range s.settings.lanes {
			<-s.idle // a caller may still be sending its own call
		}
		_ = s.client.Close()
	})
	return nil
}

// Stats is what has happened in a store and how it is now.
type Stats struct {
	Failures [kindCount]uint64 // failed calls, by Kind
	Batches  uint64            // pipelines sent
	Waiting  int               // calls not yet taken by a lane
	Breaker  BreakerState
}

// KindCount is how many kinds of failure there are: Stats.Failures has an element for each Kind below it.
const KindCount = int(kindCount)

// Stats returns the store's figures. They are not of one instant.
func (s *Store) Stats() Stats {
	stats := Stats{Batches: s.batches.Load(), Waiting: len(s.queue), Breaker: s.breaker.State()}
	for k := range stats.Failures {
		stats.Failures[k] = s.reporter.kinds[k].total.Load()
	}
	return stats
}
