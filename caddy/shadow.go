// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
)

// shadowSuffix is appended to the namespace of a candidate, so that its counters are separate from
// those of the policy it would replace.
const shadowSuffix = ".shadow"

// Bounds for trials of candidates. Trials run in the background and never delay traffic. A trial
// that exceeds these bounds is dropped and counted as untried.
const (
	trialWorkers   = 2
	trialsQueueMax = 4096
)

var shadowTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "penstock_shadow_decisions_total",
	Help: "Requests by the decision of the policies in force and of a candidate: admitted or refused; " +
		"untried if there was no time to ask the store, or the trial panicked.",
}, []string{"policy", "present", "candidate"})

// trial is one request that a candidate decides.
type trial struct {
	plan    core.Plan
	attrs   attributes
	version *live.Version
	shadows *shadows
	denied  bool // the policies in force denied the request
	// response is the settlement of a candidate that charges by the response, or nil.
	response *settlement
}

var trials = sync.Pool{New: func() any { return new(trial) }}

// shadows tries out candidate policies on the requests of one configuration. Each candidate decides
// as if it were in force, but with separate counters. No request waits for it.
type shadows struct {
	store     counter.Store
	directory *directory.Directory // nil without one
	queue     chan *trial
	ending    chan struct{}
	once      sync.Once
	workers   sync.WaitGroup
	quiet     atomic.Int64 // when a panic was last logged, in Unix seconds
}

func startShadows(store counter.Store, clients *directory.Directory) *shadows {
	s := &shadows{store: store, directory: clients, queue: make(chan *trial, trialsQueueMax), ending: make(chan struct{})}
	for range trialWorkers {
		s.workers.Go(s.work)
	}
	return s
}

func (s *shadows) work() {
	for {
		select {
		case t := <-s.queue:
			s.run(t)
		case <-s.ending:
			return
		}
	}
}

// stop ends the trials and drops queued ones, so that a configuration need not wait for them.
// Requests that are still being served are counted as untried from then on.
func (s *shadows) stop() {
	s.once.Do(func() { close(s.ending) })
	s.workers.Wait()
}

// tryOut starts a trial of each candidate once per request, in the background. It returns the
// settlements of candidates that charge by the response; their trials start when the response is
// known.
func (h *Handler) tryOut(rec *record, r *http.Request, denied bool) (waiting *settlement) {
	for _, candidate := range h.tried {
		if idle(candidate) || !rec.begin(candidate) {
			continue
		}
		if s := h.app.shadows.try(candidate, r, denied); s != nil {
			s.next, waiting = waiting, s
		}
	}
	return waiting
}

// observed passes on a request to which no policy in force applies. Candidates that wait for the
// response receive it.
func (rec *record) observed(w http.ResponseWriter, r *http.Request, waiting *settlement, next caddyhttp.Handler) error {
	if waiting == nil {
		return next.ServeHTTP(w, r)
	}
	own := rec.responder(w)
	own.settlement = waiting
	return own.pass(r, next)
}

// try reads the request and leaves the rest of the trial to a worker, because the request must not
// be read once its handler has returned. If the candidate charges by the response, try returns the
// settlement that starts the trial.
func (s *shadows) try(candidate *live.Policy, r *http.Request, denied bool) (waiting *settlement) {
	t := trials.Get().(*trial)
	t.shadows, t.version, t.denied = s, candidate.Current(), denied
	t.plan.Reset()
	if s.directory != nil {
		t.plan.UseDirectory(s.directory) // the client has been read by now, unless no policy in force applies
	}
	t.attrs.reset(r)
	t.plan.Add(t.version.Ruleset, &t.attrs)
	if names := t.plan.Unresolved(); len(names) > 0 {
		s.directory.Learn(t.plan.Source(), names)
	}
	t.attrs.release() // the plan has copied everything that it needs from the request
	if !denied {
		response := settlements.Get().(*settlement)
		if t.plan.Expect(&response.Settlement) {
			t.response, response.trial = response, t
			return response
		}
		response.Release()
	}
	t.enqueue()
	return nil
}

// enqueue passes the trial to a worker, or counts it as untried if the queue is full.
func (t *trial) enqueue() {
	select {
	case <-t.shadows.ending:
		t.finish("untried")
		return
	default:
	}
	select {
	case t.shadows.queue <- t:
	default:
		t.finish("untried")
	}
}

// run decides a trial. It recovers from a panic, which would otherwise end the process, and does
// not reuse that trial.
func (s *shadows) run(t *trial) {
	defer func() {
		if reason := recover(); reason != nil {
			s.panicked(t, reason)
		}
	}()
	var d core.Decision
	if checks := t.plan.Checks(); len(checks) == 0 {
		d = t.plan.Decide()
	} else if err := s.store.Take(context.Background(), checks, t.plan.Results()); err == nil {
		d = t.plan.Decide()
		s.settle(t, &d)
	} else {
		d = t.plan.Fail(err)
	}
	if d.Delay > 0 {
		t.plan.Abandon() // a trial does not wait in throttle queues
	}
	t.version.Outcomes.Count(t.plan.Outcomes())
	t.finish(admitted(d.Denied() && d.Delay == 0))
}

// panicked counts the trial that panicked and logs at most one panic per second.
func (s *shadows) panicked(t *trial, reason any) {
	name := t.version.Document.Name
	if now := time.Now().Unix(); s.quiet.Swap(now) != now {
		caddy.Log().Named("penstock").Error("a shadow policy has panicked", zap.String("policy", name), zap.Any("reason", reason),
			zap.Stack("stack"))
	}
	shadowTotal.WithLabelValues(name, admitted(t.denied), "untried").Inc()
}

// settle corrects the candidate's charges once the response is known.
func (s *shadows) settle(t *trial, d *core.Decision) {
	if t.response == nil || d.Denied() || !t.plan.Settlement(&t.response.Settlement) {
		return
	}
	checks, _ := t.response.Checks(t.response)
	if len(checks) == 0 {
		return
	}
	// If the store does not answer, the reserved units stay charged, as with policies in force.
	_ = s.store.Take(context.Background(), checks, make([]counter.Result, len(checks)))
}

// finish counts the trial and recycles it.
func (t *trial) finish(candidate string) {
	shadowTotal.WithLabelValues(t.version.Document.Name, admitted(t.denied), candidate).Inc()
	if t.response != nil {
		t.response.Release()
	}
	t.version, t.response, t.shadows = nil, nil, nil
	trials.Put(t)
}

func admitted(denied bool) string {
	if denied {
		return "refused"
	}
	return "admitted"
}

func init() { collectors = append(collectors, shadowTotal) }

// openShadowFile opens a candidate in a file for an app or a handler.
func (a *App) openShadowFile(path, place string, complete func(*policyfile.Document) error) (*live.Policy, error) {
	resolved, err := resolvePath(path)
	if err != nil {
		return nil, err
	}
	return a.openShadow(live.File(resolved), place, complete)
}

// openShadow opens a candidate for an app or a handler. It calls the owner's
// complete function first.
func (a *App) openShadow(source live.Source, place string, complete func(*policyfile.Document) error) (*live.Policy, error) {
	if a.shadows == nil {
		a.shadows = startShadows(a.store, a.store.directory)
	}
	return a.open(source, place+", shadow policy", func(d *policyfile.Document) error {
		if err := complete(d); err != nil {
			return err
		}
		d.Name += shadowSuffix
		return nil
	})
}
