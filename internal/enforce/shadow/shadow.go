// SPDX-License-Identifier: Apache-2.0

// Package shadow evaluates candidate policies beside the policies in force, for every front.
//
// # Promise
//
// A candidate decides as if it were in force, but with separate counters. No request waits for a
// candidate, and a candidate changes no decision and no answer. Each trial is counted once, by the
// decision of the policies in force and by that of the candidate.
//
// # Price
//
// A trial is one more store call, in the background. A trial for which there is no room in the
// queue is counted as untried.
//
// # When not to use it
//
// A single rule can be tried out with action log_only.
package shadow

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/live"
)

// Suffix is appended to the namespace of a candidate, so that its counters are separate from those
// of the policy that it would replace.
const Suffix = ".shadow"

// These are the bounds of trials. Trials run in the background and never delay traffic. A trial
// beyond them is dropped and counted as untried.
const (
	workers  = 2
	queueMax = 4096
)

// The decisions that the metric names.
const (
	admitted = "admitted"
	refused  = "refused"
	untried  = "untried"
)

// NewTotal returns the metric of all trials, which is not registered yet.
func NewTotal() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_shadow_decisions_total",
		Help: "Requests by the decision of the policies in force and of a candidate: admitted or refused; untried if " +
			"the store was not asked in time, what the candidate reads is not known, or the trial panicked.",
	}, []string{"policy", "present", "candidate"})
}

// Options configures [Start]. Store and Total are required.
type Options struct {
	// Store charges the candidates. The caller closes the store after [Runner.Stop].
	Store counter.Store
	// Total counts trials.
	Total *prometheus.CounterVec
	// Panicked is called for a trial that panics, at most once a second, during the panic. Nil
	// means no call.
	Panicked func(policy string, reason any)
}

// Runner runs trials. A Runner is safe for concurrent use.
type Runner struct {
	options Options
	queue   chan *Trial
	ending  chan struct{}
	once    sync.Once
	workers sync.WaitGroup
	quiet   atomic.Int64 // when a panic was last reported, in Unix seconds
}

// Start returns a runner that works until [Runner.Stop].
func Start(o Options) *Runner {
	r := &Runner{options: o, queue: make(chan *Trial, queueMax), ending: make(chan struct{})}
	for range workers {
		r.workers.Go(r.work)
	}
	return r
}

func (r *Runner) work() {
	for {
		select {
		case t := <-r.queue:
			r.run(t)
		case <-r.ending:
			return
		}
	}
}

// Stop ends the trials and drops queued ones, so that closing a configuration does not take long.
// Later trials of requests still under way count as untried. A second call does nothing.
func (r *Runner) Stop() {
	r.once.Do(func() { close(r.ending) })
	r.workers.Wait()
}

// Response is a response that determines the charges of a candidate. The candidate waits for this
// response.
type Response interface {
	core.Answer
	// Pending returns the settlement of the candidate's charges.
	Pending() *core.Settlement
	// Release ends the use of the response.
	Release()
}

// Source is a request that a worker reads after the front has answered it.
type Source interface {
	// Plan adds the request to the trial's plan, with [Trial.Add] or [Trial.AddDescriptors]. Plan
	// returns false if not enough is known about the request.
	Plan(t *Trial) bool
	// Release ends the use of the request.
	Release()
}

// Trial is one request that a candidate decides. A Trial belongs to the caller until [Trial.Start]
// or [Trial.Drop].
type Trial struct {
	Plan    core.Plan
	Version *live.Version // the version of the candidate
	Denied  bool          // whether the policies in force denied the request
	// Source reads the request. Source is nil if the plan is complete when the trial starts.
	Source Source
	// Response is the response on which the candidate's charges depend; nil if it is unknown.
	Response Response

	runner      *Runner
	descriptors []core.Descriptor // nil for a request without descriptors
	reports     []counter.Check
}

var trials = sync.Pool{New: func() any { return new(Trial) }}

// Begin returns a trial of a request that the policies in force have decided.
func (r *Runner) Begin(candidate *live.Version, denied bool) *Trial {
	t := trials.Get().(*Trial)
	t.runner, t.Version, t.Denied = r, candidate, denied
	t.Plan.Reset()
	return t
}

// Add adds a request to the plan, with the known records of the request's clients. The directory
// may be nil.
func (t *Trial) Add(a policy.Attributes, clients *directory.Directory) {
	if clients != nil {
		t.Plan.UseDirectory(clients)
	}
	t.Plan.Add(t.Version.Ruleset, a)
	t.learn(clients)
}

// AddDescriptors is like Add for a request with descriptors. The trial keeps the descriptors until
// it ends, and sets the candidate's rules in them.
func (t *Trial) AddDescriptors(ds []core.Descriptor, clients *directory.Directory) {
	if clients != nil {
		t.Plan.UseDirectory(clients)
	}
	for i := range ds {
		ds[i].Ruleset = t.Version.Ruleset
	}
	t.descriptors = ds
	t.Plan.AddDescriptors(ds)
	t.learn(clients)
}

// Trial.learn makes the directory read the clients that it does not know, for later requests.
func (t *Trial) learn(clients *directory.Directory) {
	if names := t.Plan.Unresolved(); clients != nil && len(names) > 0 {
		clients.Learn(t.Plan.Source(), names)
	}
}

// Start passes the trial to a worker, or counts it as untried if the queue is full.
func (t *Trial) Start() {
	select {
	case <-t.runner.ending:
		t.finish(untried)
		return
	default:
	}
	select {
	case t.runner.queue <- t:
	default:
		t.finish(untried)
	}
}

// Drop counts the trial as untried.
func (t *Trial) Drop() { t.finish(untried) }

// Runner.run decides a trial. It recovers from a panic, which would otherwise end the process, and
// does not reuse that trial.
func (r *Runner) run(t *Trial) {
	defer func() {
		if reason := recover(); reason != nil {
			r.panicked(t, reason)
		}
	}()
	if t.Source != nil && !t.Source.Plan(t) {
		t.finish(untried)
		return
	}
	d := t.decide()
	if d.Delay > 0 {
		t.Plan.Abandon() // a trial does not wait in throttle queues
	}
	t.Version.Outcomes.Count(t.Plan.Outcomes())
	if d.Denied() && d.Delay == 0 {
		t.finish(refused)
		return
	}
	t.finish(admitted)
}

// Trial.decide calls the store and decides.
func (t *Trial) decide() core.Decision {
	checks := t.Plan.Checks()
	for again := len(checks) > 0; again; again = t.Plan.TryNextQuota(t.descriptors) {
		if err := t.runner.options.Store.Take(context.Background(), checks, t.Plan.Results()); err != nil {
			return t.Plan.Fail(err)
		}
	}
	if t.descriptors == nil {
		d := t.Plan.Decide()
		t.settle(&d)
		return d
	}
	d := t.Plan.DecideDescriptors(t.descriptors)
	if len(checks) > 0 {
		t.reports = t.Plan.Reports(t.reports[:0], t.descriptors, d.Denied())
		t.correct(t.reports)
	}
	return d
}

// Trial.settle corrects the candidate's charges by the response.
func (t *Trial) settle(d *core.Decision) {
	if t.Response == nil || d.Denied() || !t.Plan.Settlement(t.Response.Pending()) {
		return
	}
	checks, _ := t.Response.Pending().Checks(t.Response)
	t.correct(checks)
}

// Trial.correct sends further checks to the store. If the store does not answer, the reserved units
// stay charged, as with policies in force.
func (t *Trial) correct(checks []counter.Check) {
	if len(checks) > 0 {
		_ = t.runner.options.Store.Take(context.Background(), checks, make([]counter.Result, len(checks)))
	}
}

// Runner.panicked counts the trial that panicked and reports at most one panic per second.
func (r *Runner) panicked(t *Trial, reason any) {
	name := t.Version.Document.Name
	if now := time.Now().Unix(); r.quiet.Swap(now) != now && r.options.Panicked != nil {
		r.options.Panicked(name, reason)
	}
	r.options.Total.WithLabelValues(name, decisionOf(t.Denied), untried).Inc()
}

// Trial.finish counts the trial and recycles it.
func (t *Trial) finish(candidate string) {
	t.runner.options.Total.WithLabelValues(t.Version.Document.Name, decisionOf(t.Denied), candidate).Inc()
	if t.Response != nil {
		t.Response.Release()
	}
	if t.Source != nil {
		t.Source.Release()
	}
	t.Plan.Reset()
	t.Version, t.Denied, t.Source, t.Response = nil, false, nil, nil
	t.runner, t.descriptors, t.reports = nil, nil, t.reports[:0]
	trials.Put(t)
}

// decisionOf returns the name of a decision.
func decisionOf(denied bool) string {
	if denied {
		return refused
	}
	return admitted
}
