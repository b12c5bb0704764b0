// SPDX-License-Identifier: Apache-2.0

package front

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/envoy-module/console"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/enforce/settle"
	"github.com/penstock/penstock/internal/enforce/shadow"
	"github.com/penstock/penstock/internal/enforce/throttle"
	"github.com/penstock/penstock/internal/enforce/topk"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/status"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/survive"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// Process holds what all filters of one Envoy share, such as stores, verifiers, queues and metrics.
// If a configuration replaces another one and has the same store settings, it uses the same store
// with its counters. A Process is safe for concurrent use.
type Process struct {
	logger    *slog.Logger
	metrics   *metrics.Metrics
	verifiers *live.Verifiers
	lines     *throttle.Queues
	denied    *topk.Sketch
	memory    *memory
	panics    atomic.Int64
	quiet     atomic.Int64  // the second in which a panic was last logged
	inflating inflate.Queue // of compressed responses

	reports        *reports
	statuses       *status.Bounds
	console        *console.Console
	registry       *prometheus.Registry
	invalidTargets prometheus.Counter
	tried          *prometheus.CounterVec // by policy, and by the decisions of the policy in force and of the candidate
	validates      bool                   // Envoy only checks its configuration
	lacks          string                 // an attribute that this Envoy does not provide; "" for none

	mu     sync.Mutex
	stores shares[*sharedStore] // by their settings
	// pool lets stores that have the same servers, but different settings, count together while
	// Redis does not answer.
	pool   store.Pool
	fronts []*Front // the open ones, the oldest first

	sending sync.Mutex
	senders shares[sender] // by their settings
}

// NewProcess returns a process without filters. It logs to the given logger.
func NewProcess(logger *slog.Logger) *Process {
	p := &Process{logger: logger, metrics: metrics.New(), verifiers: live.NewVerifiers(logger),
		lines: throttle.New(throttle.Options{}), denied: topk.New(topk.Options{}), memory: newMemory(), stores: shares[*sharedStore]{}, senders: shares[sender]{},
		reports: newReports(logger), statuses: status.NewBounds(), tried: shadow.NewTotal(), registry: prometheus.NewRegistry(),
		invalidTargets: prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_invalid_targets_total",
			Help: "Requests answered 400 because their target or host is of a form that is not served."})}
	p.console = console.New(console.Options{Metrics: p.registry, Panicked: p.countPanic, Logger: logger})
	p.registerMetrics()
	return p
}

// Validates makes the process check configurations and do nothing else: it serves no operators,
// reports nothing, and does not join the nodes. Validates must be called before Open.
func (p *Process) Validates() { p.validates = true }

// Lacks records that this Envoy does not provide an attribute. The process then rejects policies
// that read the attribute, because rules that compare it would never apply. Lacks must be called
// before Open.
func (p *Process) Lacks(attribute string) { p.lacks = attribute }

// Panics returns the number of recovered panics, including panics of background work.
func (p *Process) Panics() int64 { return p.panics.Load() + survive.Panics() }

// Panicked counts a panic of a hook, and logs at most one each second.
func (p *Process) Panicked(reason any) { p.countPanic(reason) }

// countPanic counts a panic, and logs at most one each second.
func (p *Process) countPanic(reason any) {
	p.panics.Add(1)
	now := time.Now().Unix()
	if p.quiet.Swap(now) != now {
		p.logger.Error("a panic, and on_error decides", "reason", fmt.Sprint(reason), "stack", string(debug.Stack()))
	}
}

// guard recovers from a panic in a goroutine that decides no request. It must be deferred.
func (p *Process) guard() {
	if reason := recover(); reason != nil {
		p.countPanic(reason)
	}
}

// sharedStore is a store that one or several filters use.
type sharedStore struct {
	*store.Store
	key       string
	enforcer  *enforce.Enforcer
	directory *directory.Directory // nil without one
	settler   *settle.Queue
	asker     *asker
	node      *fleet.Node
	joining   sync.Once
	member    *fleet.Member // nil before join
}

// join announces this process to the other nodes that count in the same Redis. If the store is in
// memory, join does nothing.
func (s *sharedStore) join() {
	if s.Redis != nil {
		s.joining.Do(func() { s.member = fleet.Join(s.Redis, s.node) })
	}
}

// openStore returns a store with the settings. The caller releases it with closeStore.
func (p *Process) openStore(s *Settings) (*sharedStore, error) {
	key, err := s.storeKey()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stores.use(key, func() (*sharedStore, error) { return p.buildStore(s, key) })
}

func (p *Process) buildStore(s *Settings, key string) (*sharedStore, error) {
	options, err := s.Store.options()
	if err != nil {
		return nil, err
	}
	outages := enforce.NewOutages(p.logger)
	options.Logger, options.Pool = p.logger, &p.pool
	options.Failed = func(err error) {
		p.metrics.StoreFailed(err)
		outages.Failed(err)
	}
	opened, err := store.Open(options)
	if err != nil {
		return nil, err
	}
	shared := &sharedStore{Store: opened, key: key, enforcer: enforce.New(opened.Requests, p.metrics)}
	shared.enforcer.WaitForLoans(opened.Loans)
	shared.enforcer.Log(outages)
	shared.enforcer.Report(p.reports.log)
	shared.enforcer.Measure(p.reports.meter)
	shared.node = fleet.New(fleet.Sources{Front: frontName, Policies: func() []fleet.Policy { return operator.PoliciesOf(p.operated(shared)) },
		Totals: p.totals, Denied: p.denied, Problems: opened.Problems, Events: p.reports.log.Tail}, time.Now())
	shared.enforcer.CountDenials(p.denied)
	shared.settler = settle.New(opened.Corrections, func(end settle.End) { p.metrics.Settlements.WithLabelValues(string(end)).Inc() })
	shared.settler.Panic = p.countPanic
	var timeout time.Duration
	if options.Redis != nil {
		timeout = options.Redis.Timeout
	}
	shared.asker = newAsker(p, shared.enforcer, lateDeadline(timeout), opened.Away)
	go shared.asker.awaitStart(opened.AwaitStart)
	if s.Directory == nil {
		return shared, nil
	}
	if shared.directory, err = s.Directory.open(p, opened, timeout); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return shared, nil
}

// closeStore ends a filter's use of a store. The end of the last use closes the store.
func (p *Process) closeStore(s *sharedStore) error { return p.stores.end(&p.mu, s.key) }

// close closes the store after the charges of its requests were corrected.
func (s *sharedStore) close() error {
	s.asker.stop()
	var problems []error
	if !s.settler.Stop(settle.Deadline) {
		problems = append(problems, errors.New("the store closes before all charges were settled: the reserved units stay charged"))
	}
	if s.member != nil {
		s.member.Close()
	}
	if s.directory != nil {
		problems = append(problems, s.directory.Close())
	}
	return errors.Join(append(problems, s.Close())...)
}
