// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
)

// Store keeps counters in Redis: in one server, in the one that sentinels say is the master, in a cluster,
// or in a ring of independent servers. Make one with
// [New] and end it with [Store.Close]. Safe for concurrent use.
type Store struct {
	settings settings
	reporter reporter
	calls    sync.Pool // of *call
	batches  atomic.Uint64
	pinned   atomic.Int64 // core.Micros; not 0 only in tests: the instant to decide at

	only      atomic.Pointer[node] // the server, but in a cluster or a ring; nil until sentinels have named it
	cluster   *cluster             // nil: it is none
	ring      *ring                // nil: it is none
	epoch     atomic.Int64         // of the master that sentinels have named, or of the cluster; only who follows them writes it
	forgetful atomic.Int64         // how often in succession most sentinels knew of fewer failovers
	nudged    chan struct{}        // wakes those who follow a cluster or sentinels
	asked     chan struct{}        // closed when they have been asked for the first time, be it in vain
	lost      atomic.Pointer[Failure]

	ctx     context.Context // ends when the store closes
	cancel  context.CancelFunc
	running sync.WaitGroup // those who follow, and the ends of nodes that were given up
	closing sync.Once

	counting   sync.Once
	population atomic.Int64 // nodes that are believed to use this Redis
}

var (
	_ core.Store   = (*Store)(nil)
	_ core.Batcher = (*Store)(nil)
)

// New checks all the options and returns a store that is ready at once: it connects in the background, and Redis may come
// up later. The error lists everything that is wrong with the options. The caller must call [Store.Close].
func New(options Options) (*Store, error) {
	settings, err := options.settings()
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	s := &Store{
		settings: settings,
		reporter: reporter{logger: settings.logger, server: settings.String(), start: time.Now()},
		nudged:   make(chan struct{}, 1),
		asked:    make(chan struct{}),
	}
	s.calls.New = newCall
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.start()
	return s, nil
}

// start makes the node of a single server, or sets those going who find out which ones there are.
func (s *Store) start() {
	switch s.settings.mode {
	case ModeCluster:
		s.cluster = &cluster{store: s, nodes: map[string]*node{}}
		s.running.Go(func() { s.follow(s.askCluster) })
	case ModeSentinel:
		s.running.Go(func() { s.follow(s.askSentinels) })
		s.running.Go(s.listen)
	case ModeRing:
		s.ring = newRing(s)
		close(s.asked)
	default:
		s.only.Store(newNode(s, s.settings.address))
		close(s.asked)
	}
}

// String names the servers as the options do, without credentials.
func (s *Store) String() string { return s.reporter.server }

// Take implements [core.Store]. It returns when ctx is done at the latest, or Redis has not answered for the timeout, or the
// call was in the queue for a second (see the package). Every error is an error of core.ValidateChecks or a [*Failure].
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
	deadline := time.Now().Add(s.settings.timeout)
	if failure := s.take(ctx, deadline, checks, results); failure != nil {
		return s.fail(failure)
	}
	return nil
}

// take asks checks. The short way is that of checks which one known server can answer, and does.
func (s *Store) take(ctx context.Context, deadline time.Time, checks []core.Check, results []core.Result) *Failure {
	place, one := s.onePlace(checks)
	var begun *part
	if one {
		if n := s.nodeOf(place); n != nil {
			failure := n.take(ctx, checks, results)
			if failure == nil || s.settings.fixed() {
				return failure
			}
			deadline = time.Now().Add(s.settings.timeout) // it may have waited for long
			begun = &part{place: place, checks: checks, results: results, node: n, failure: failure}
		}
	}
	t := &trip{checks: checks, results: results}
	if begun != nil {
		t.parts = []*part{begun}
	} else {
		t = s.newTrip(checks, results)
	}
	trips := []*trip{t}
	deadline = s.travel(ctx, deadline, trips)
	var failure *Failure
	s.conclude(ctx, deadline, trips, func(_ int, f *Failure) { failure = f })
	return failure
}

// TakeAll implements [core.Batcher]. The calls go out in one pipeline for each server, or one for each 128 of them. What is
// said of ctx at [Store.Take] holds here too, but for a cluster: if it cannot be done and Redis is idle, the caller sends the
// first pipeline himself.
func (s *Store) TakeAll(ctx context.Context, calls []core.Call) {
	if n := s.only.Load(); n != nil {
		n.takeAll(ctx, calls)
		if s.settings.mode != ModeSingle {
			s.takeOn(ctx, n, calls)
		}
	} else {
		s.takeApart(ctx, time.Now().Add(s.settings.timeout), calls)
	}
	s.failAll(calls)
}

// takeApart answers calls whose checks may be in several servers.
func (s *Store) takeApart(ctx context.Context, deadline time.Time, calls []core.Call) {
	trips, of := make([]*trip, 0, len(calls)), make([]int, 0, len(calls))
	for i := range calls {
		call := &calls[i]
		if call.Err = core.ValidateChecks(call.Checks, call.Results); call.Err == nil && len(call.Checks) > 0 {
			trips, of = append(trips, s.newTrip(call.Checks, call.Results)), append(of, i)
		}
	}
	s.finish(ctx, deadline, calls, trips, of)
}

// takeOn sends those calls elsewhere which a server that is no longer the right one has not executed.
func (s *Store) takeOn(ctx context.Context, asked *node, calls []core.Call) {
	var trips []*trip
	var of []int
	for i := range calls {
		call := &calls[i]
		if failure, ok := call.Err.(*Failure); ok {
			p := &part{checks: call.Checks, results: call.Results, node: asked, failure: failure}
			trips, of = append(trips, &trip{checks: call.Checks, results: call.Results, parts: []*part{p}}), append(of, i)
		}
	}
	if len(trips) > 0 {
		s.finish(ctx, time.Now().Add(s.settings.timeout), calls, trips, of)
	}
}

// finish answers the calls with the numbers of from their trips.
func (s *Store) finish(ctx context.Context, deadline time.Time, calls []core.Call, trips []*trip, of []int) {
	deadline = s.travel(ctx, deadline, trips)
	s.conclude(ctx, deadline, trips, func(i int, f *Failure) { setFailure(&calls[of[i]], f) })
}

// failAll counts the calls that the store is to blame for.
func (s *Store) failAll(calls []core.Call) {
	for i := range calls {
		var failure *Failure
		if calls[i].Err != nil && errors.As(calls[i].Err, &failure) {
			_ = s.fail(failure)
		}
	}
}

// fail counts and, at a bounded rate, logs a failed call.
func (s *Store) fail(f *Failure) error {
	s.reporter.failed(time.Now(), f, 1)
	return f
}

// clock returns the time since the store was made, by which calls and batches are compared. It is never 0.
func (s *Store) clock() time.Duration { return max(1, time.Since(s.reporter.start)) }

// nudge has those asked who know which servers there are.
func (s *Store) nudge() {
	select {
	case s.nudged <- struct{}{}:
	default:
	}
}

// nodes returns the servers that are asked now.
func (s *Store) nodes() []*node {
	if s.cluster != nil {
		return s.cluster.all()
	}
	if s.ring != nil {
		return s.ring.nodes
	}
	if n := s.only.Load(); n != nil {
		return []*node{n}
	}
	return nil
}

// Check asks Redis whether it answers and whether it is set up so that limits hold. The store does so by itself in the
// background and logs the answer; Check is for health pages. Of a cluster or a ring it is enough that one server answers: what
// fails for the others' clients is in the metrics, and restarting this process would not help them.
func (s *Store) Check(ctx context.Context) error {
	nodes := s.nodes()
	if len(nodes) == 0 {
		return s.unknown()
	}
	var problems []error
	answered := false
	for _, n := range nodes {
		err := n.check(ctx)
		var unsafe *unsafeError
		answered = answered || err == nil || errors.As(err, &unsafe)
		if err != nil && len(nodes) > 1 {
			err = fmt.Errorf("%s: %w", n.address.target, err)
		}
		if err != nil && (answered || len(problems) < checkProblemsMax) {
			problems = append(problems, err)
		}
	}
	if answered {
		return errors.Join(onlyUnsafe(problems)...)
	}
	return errors.Join(problems...)
}

// checkProblemsMax is of how many servers that do not answer Check tells.
const checkProblemsMax = 3

// onlyUnsafe leaves out the servers that do not answer.
func onlyUnsafe(problems []error) (left []error) {
	for _, err := range problems {
		var unsafe *unsafeError
		if errors.As(err, &unsafe) {
			left = append(left, err)
		}
	}
	return left
}

// unknown is the failure of a call for which no server is known.
func (s *Store) unknown() *Failure {
	if s.ctx.Err() != nil {
		return errClosed
	}
	if f := s.lost.Load(); f != nil {
		return f
	}
	return errNoServer
}

// Close answers everyone who waits with an error, closes the connections and returns when no goroutine of the store is
// left. It may be called more than once. Its error is always nil; it is there for io.Closer.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.cancel()
		s.counting.Do(func() {}) // it has begun, and is waited for, or never will
		s.running.Wait()
		if s.cluster != nil {
			s.cluster.close()
		} else if s.ring != nil {
			s.ring.close()
		} else if n := s.only.Load(); n != nil {
			n.close()
		}
	})
	return nil
}

// Stats is what has happened in a store and how it is now.
type Stats struct {
	Failures [kindCount]uint64 // failed calls, by Kind
	Batches  uint64            // pipelines sent
	Waiting  int               // calls not yet taken by a lane
	Servers  int               // that are asked: 1, the masters of a cluster, or those of a ring
	Breaker  BreakerState      // the worst of those of all servers: one that is open is worse than one that is half open
}

// Stats returns the store's figures. They are not of one instant.
func (s *Store) Stats() Stats {
	stats := Stats{Batches: s.batches.Load()}
	for _, n := range s.nodes() {
		stats.Servers++
		stats.Waiting += n.queue.len()
		stats.Breaker = Worse(stats.Breaker, n.breaker.State())
	}
	for k := range stats.Failures {
		stats.Failures[k] = s.reporter.kinds[k].total.Load()
	}
	return stats
}

// ServerStats is how one server is, as far as its calls tell.
type ServerStats struct {
	Addr    string       // host:port, or the path of a socket, as the options or the cluster name it
	Breaker BreakerState // of the calls to it
}

// Servers returns the servers that are asked: none while nobody has named them.
func (s *Store) Servers() (all []ServerStats) {
	for _, n := range s.nodes() {
		all = append(all, ServerStats{Addr: n.address.target, Breaker: n.breaker.State()})
	}
	return all
}
