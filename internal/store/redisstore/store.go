// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/survive"
)

// Store keeps counters in Redis: in one server, in the master that sentinels name, in a cluster, or
// in a ring of independent servers. Create one with [New] and close it with [Store.Close]. A Store
// is safe for concurrent use.
type Store struct {
	settings settings
	reporter reporter
	// of *call; a pointer, because the runtime keeps an unused pool for a while, and would keep the
	// store with it
	calls   *sync.Pool
	batches atomic.Uint64
	// counter.Micros; tests set it to the instant at which to decide; 0 means the server's clock
	pinned atomic.Int64

	// the server, except in a cluster or a ring; nil until sentinels have named it
	only    atomic.Pointer[node]
	cluster *cluster       // nil in the other modes
	ring    *ring          // nil in the other modes
	recent  *recentDenials // nil unless there is a cluster or a ring
	// failover epoch of the master, or epoch of the cluster; only the discovery goroutine writes it
	epoch atomic.Int64
	// the answer of a sentinel that still counts failovers which most sentinels have forgotten; the
	// store ignores this answer; nil if there is none
	outdatedView atomic.Pointer[masterView]
	// consecutive rounds in which most sentinels knew of fewer failovers
	behindRounds  atomic.Int64
	rediscoverNow chan struct{} // a signal that starts a round of discovery
	// closed after the first round of discovery, even a failed one
	discovered chan struct{}
	discovery  sync.Once
	lost       atomic.Pointer[Failure]

	ctx     context.Context // the context ends when the store closes
	cancel  context.CancelFunc
	running sync.WaitGroup // the goroutines of discovery, and nodes that are being closed
	closing sync.Once

	counting  sync.Once
	nodeCount atomic.Int64 // estimated number of nodes that use this Redis
	infos     infoReader   // what the servers report about themselves, for metrics
}

var (
	_ counter.Store   = (*Store)(nil)
	_ counter.Batcher = (*Store)(nil)
)

// New checks all the options and returns a store that is ready at once. The store connects in the
// background, so Redis may start after the store. The error lists every problem of the options. The
// caller must call [Store.Close].
func New(options Options) (*Store, error) {
	settings, err := options.settings()
	if err != nil {
		return nil, fmt.Errorf("redis store: %w", err)
	}
	s := &Store{
		settings:      settings,
		reporter:      reporter{logger: settings.logger, server: settings.String(), start: time.Now()},
		calls:         &sync.Pool{New: newCall},
		rediscoverNow: make(chan struct{}, 1),
		discovered:    make(chan struct{}),
	}
	if settings.mode == ModeCluster || settings.mode == ModeRing {
		s.recent = newRecentDenials()
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.start()
	return s, nil
}

// Store.start creates the node of a single server, or starts the goroutines that discover the
// servers.
func (s *Store) start() {
	switch s.settings.mode {
	case ModeCluster:
		s.cluster = &cluster{store: s, nodes: map[string]*node{}}
		survive.Go(&s.running, s.settings.logger, func() { s.follow(s.askCluster) })
	case ModeSentinel:
		survive.Go(&s.running, s.settings.logger, func() { s.follow(s.askSentinels) })
		survive.Go(&s.running, s.settings.logger, s.listen)
	case ModeRing:
		s.ring = newRing(s)
		close(s.discovered)
	default:
		s.only.Store(newNode(s, s.settings.address))
		close(s.discovered)
	}
}

// String names the servers as in the options, without credentials.
func (s *Store) String() string { return s.reporter.server }

// Take implements [counter.Store]. Take returns at the latest when ctx is done, when Redis has not
// answered within [Store.Patience], or when the call has been in the queue for a second or for
// three timeouts, whichever is longer (see the package documentation). Every error is an error of
// counter.ValidateChecks or a [*Failure].
//
// A ctx that is never done, or has a deadline that is further away than [Store.Patience], saves two
// goroutine switches when Redis is idle. If such a ctx with a deadline is canceled, Take can return
// later by up to [Store.Patience]. So pass context.WithoutCancel if returning early has no benefit.
func (s *Store) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := counter.ValidateChecks(checks, results); err != nil {
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

// Store.take runs the checks. In the common case one known server has all the counters and answers.
func (s *Store) take(ctx context.Context, deadline time.Time, checks []counter.Check, results []counter.Result) *Failure {
	place, one := s.onePlace(checks)
	var begun *part
	if one {
		if n := s.nodeOf(place); n != nil {
			failure := n.take(ctx, checks, results)
			if failure == nil || s.settings.fixed() {
				return failure
			}
			deadline = time.Now().Add(s.settings.timeout) // a new one, because the call might have waited in the queue
			begun = &part{place: place, checks: checks, results: results, node: n, failure: failure}
		}
	}
	t := &splitCall{checks: checks, results: results}
	if begun != nil {
		t.parts = []*part{begun}
	} else {
		t = s.newSplitCall(checks, results)
	}
	splitCalls := []*splitCall{t}
	deadline = s.sendInSteps(ctx, deadline, splitCalls)
	var failure *Failure
	s.mergeAll(ctx, deadline, splitCalls, func(_ int, f *Failure) { failure = f })
	return failure
}

// TakeAll implements [counter.Batcher]. The calls are sent in one pipeline for each server, or in
// several of at most 128 calls. As with [Store.Take], if Redis is idle, and ctx ends late enough or
// never, the caller sends the first pipeline itself, except in a cluster.
func (s *Store) TakeAll(ctx context.Context, calls []counter.Call) {
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

// takeApart answers calls whose checks can be on several servers.
func (s *Store) takeApart(ctx context.Context, deadline time.Time, calls []counter.Call) {
	splitCalls, of := make([]*splitCall, 0, len(calls)), make([]int, 0, len(calls))
	for i := range calls {
		call := &calls[i]
		if call.Err = counter.ValidateChecks(call.Checks, call.Results); call.Err == nil && len(call.Checks) > 0 {
			splitCalls, of = append(splitCalls, s.newSplitCall(call.Checks, call.Results)), append(of, i)
		}
	}
	s.finish(ctx, deadline, calls, splitCalls, of)
}

// takeOn resends the calls that a server did not execute because it no longer has their counters.
func (s *Store) takeOn(ctx context.Context, asked *node, calls []counter.Call) {
	var splitCalls []*splitCall
	var of []int
	for i := range calls {
		call := &calls[i]
		if failure, ok := call.Err.(*Failure); ok {
			p := &part{checks: call.Checks, results: call.Results, node: asked, failure: failure}
			splitCalls, of = append(splitCalls, &splitCall{checks: call.Checks, results: call.Results, parts: []*part{p}}), append(of, i)
		}
	}
	if len(splitCalls) > 0 {
		s.finish(ctx, time.Now().Add(s.settings.timeout), calls, splitCalls, of)
	}
}

// Store.finish sends the split calls and stores each outcome: splitCalls[i] belongs to
// calls[of[i]].
func (s *Store) finish(ctx context.Context, deadline time.Time, calls []counter.Call, splitCalls []*splitCall, of []int) {
	deadline = s.sendInSteps(ctx, deadline, splitCalls)
	s.mergeAll(ctx, deadline, splitCalls, func(i int, f *Failure) { setFailure(&calls[of[i]], f) })
}

// failAll counts the calls that failed because of the store rather than the caller.
func (s *Store) failAll(calls []counter.Call) {
	for i := range calls {
		var failure *Failure
		if calls[i].Err != nil && errors.As(calls[i].Err, &failure) {
			_ = s.fail(failure)
		}
	}
}

// Store.fail counts and, at a bounded rate, logs a failed call.
func (s *Store) fail(f *Failure) error {
	s.reporter.recordFailures(time.Now(), f, 1)
	return f
}

// Patience returns how long a call waits for a late answer after it was sent, if this process is on
// time.
func (s *Store) Patience() time.Duration { return s.settings.patience }

// Store.clock returns the time since the store was created, which is never 0. The result is the
// time by which the store orders calls and batches.
func (s *Store) clock() time.Duration { return max(1, time.Since(s.reporter.start)) }

// Store.rediscover starts a round of discovery, unless one is already requested.
func (s *Store) rediscover() {
	select {
	case s.rediscoverNow <- struct{}{}:
	default:
	}
}

// Store.nodes returns the servers that currently receive calls.
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

// Check returns an error unless Redis answers and is configured so that limits are enforced. The
// store also checks this in the background and logs the result; Check is meant for health
// endpoints. In a cluster or a ring one answering server is enough, because the metrics show
// failures of the other servers, and restarting this process would not help.
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

// checkProblemsMax is the greatest number of unreachable servers that Check reports.
const checkProblemsMax = 3

// onlyUnsafe returns the problems of servers that answer.
func onlyUnsafe(problems []error) (left []error) {
	for _, err := range problems {
		var unsafe *unsafeError
		if errors.As(err, &unsafe) {
			left = append(left, err)
		}
	}
	return left
}

// Store.unknown returns the failure of a call when no server is known for it.
func (s *Store) unknown() *Failure {
	if s.ctx.Err() != nil {
		return errClosed
	}
	if f := s.lost.Load(); f != nil {
		return f
	}
	return errNoServer
}

// Close fails all waiting calls, closes the connections and waits until all goroutines of the store
// have ended. Close may be called more than once. Its error is always nil; Close implements
// io.Closer.
func (s *Store) Close() error {
	s.closing.Do(func() {
		s.cancel()
		// After this, counting has either started, and is awaited below, or it never starts.
		s.counting.Do(func() {})
		s.infos.close()
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

// Stats is a snapshot of a store's counters and state.
type Stats struct {
	Failures [kindCount]uint64 // failed calls, by Kind
	Batches  uint64            // pipelines sent
	Waiting  int               // the number of calls not yet taken by a lane
	Servers  int               // in use: 1, the masters of a cluster, or the servers of a ring
	Breaker  BreakerState      // the worst state of all servers: open is worse than half open
}

// Stats returns the store's figures. The figures are not read atomically.
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

// ServerStats is the state of one server, as observed by its calls.
type ServerStats struct {
	// host:port, or the path of a socket, as in the options or as the cluster reports it
	Addr    string
	Breaker BreakerState // the state of the breaker for calls to this server
}

// Servers returns the servers that receive calls. The result is empty until they are discovered.
func (s *Store) Servers() (all []ServerStats) {
	for _, n := range s.nodes() {
		all = append(all, ServerStats{Addr: n.address.target, Breaker: n.breaker.State()})
	}
	return all
}
