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
	"github.com/penstock/penstock/internal/policy"
)

// shadowSuffix is what the namespace of a candidate has behind that of the policy it would replace, so that its counters
// are its own.
const shadowSuffix = ".shadow"

// Bounds of trying candidates out. They run beside the traffic and never hold it up: what the workers cannot keep up with
// is counted as untried.
const (
	trialWorkers   = 2
	trialsQueueMax = 4096
)

var shadowTotal = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "penstock_shadow_decisions_total",
	Help: "Requests by what the policies in force made of them and what a candidate would have: admitted or refused; " +
		"untried if there was no time to ask, or if that panicked.",
}, []string{"policy", "present", "candidate"})

// trial is one request as a candidate sees it.
type trial struct {
	plan    core.Plan
	attrs   attributes
	edition *edition
	shadows *shadows
	refused bool // by the policies in force
	// response is what the candidate charges by; nil if it asks for nothing, or if there is none.
	response *settlement
}

var trials = sync.Pool{New: func() any { return new(trial) }}

// shadows tries candidate policies out on the requests of one configuration: each candidate is asked as if it were in
// force, on counters of its own, and nobody waits for its answer.
type shadows struct {
	store   core.Store
	queue   chan *trial
	ending  chan struct{}
	once    sync.Once
	workers sync.WaitGroup
	quiet   atomic.Int64 // the second in which a panic was logged last
}

func startShadows(store core.Store) *shadows {
	s := &shadows{store: store, queue: make(chan *trial, trialsQueueMax), ending: make(chan struct{})}
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

// stop ends the trials. What is queued is dropped: a configuration that ends must not wait for what nobody waits for. Requests of
// that configuration may still be under way, and their trials are untried.
func (s *shadows) stop() {
	s.once.Do(func() { close(s.ending) })
	s.workers.Wait()
}

// tryOut asks the candidates, once for each request. Nobody waits for their answers. Those that charge by the response are
// asked when it is known: they are returned.
func (h *Handler) tryOut(rec *record, r *http.Request, refused bool) (waiting *settlement) {
	for _, candidate := range h.tried {
		if !rec.begin(candidate) {
			continue
		}
		if s := h.app.shadows.try(candidate, r, refused); s != nil {
			s.next, waiting = waiting, s
		}
	}
	return waiting
}

// observed passes a request on that no policy in force is for, and tells the candidates that wait of its response.
func (rec *record) observed(w http.ResponseWriter, r *http.Request, waiting *settlement, next caddyhttp.Handler) error {
	if waiting == nil {
		return next.ServeHTTP(w, r)
	}
	own := rec.responder(w)
	own.settlement = waiting
	return own.pass(r, next)
}

// try takes the request in, for the request must not be read once its handler has returned, and leaves the rest to a
// worker. If the candidate charges by the response, that is when the response is known: what is returned waits for it.
func (s *shadows) try(candidate *enforced, r *http.Request, refused bool) (waiting *settlement) {
	t := trials.Get().(*trial)
	t.shadows, t.edition, t.refused = s, candidate.current.Load(), refused
	t.plan.Reset()
	t.attrs.reset(r)
	t.plan.Add(t.edition.ruleset, &t.attrs)
	t.attrs.release() // what is needed of the request is in the plan
	if !refused {
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

// enqueue leaves the trial to a worker, if there is one with time for it.
func (t *trial) enqueue() {
	select {
	case <-t.shadows.ending:
		t.tell("untried")
		return
	default:
	}
	select {
	case t.shadows.queue <- t:
	default:
		t.tell("untried")
	}
}

// run asks about a trial. One that panics ends alone, and is not used again: in this goroutine it would end the process, over
// what nobody waits for.
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
		t.plan.GiveUp() // a trial waits for nothing
	}
	t.edition.outcomes.Count(t.plan.Outcomes())
	t.tell(admitted(d.Refused() && d.Delay == 0))
}

// panicked logs a panic that is under way, once a second at most, and counts the trial.
func (s *shadows) panicked(t *trial, reason any) {
	name := t.edition.document.Name
	if now := time.Now().Unix(); s.quiet.Swap(now) != now {
		caddy.Log().Named("penstock").Error("a shadow policy has panicked", zap.String("policy", name), zap.Any("reason", reason),
			zap.Stack("stack"))
	}
	shadowTotal.WithLabelValues(name, admitted(t.refused), "untried").Inc()
}

// settle corrects what the candidate charged, as it would have when the response was known.
func (s *shadows) settle(t *trial, d *core.Decision) {
	if t.response == nil || d.Refused() || !t.plan.Settlement(&t.response.Settlement) {
		return
	}
	checks, _ := t.response.Checks(t.response)
	if len(checks) == 0 {
		return
	}
	// Without an answer what was reserved stands, as in earnest.
	_ = s.store.Take(context.Background(), checks, make([]core.Result, len(checks)))
}

// tell counts the trial and lets go of it.
func (t *trial) tell(candidate string) {
	shadowTotal.WithLabelValues(t.edition.document.Name, admitted(t.refused), candidate).Inc()
	if t.response != nil {
		t.response.Release()
	}
	t.edition, t.response, t.shadows = nil, nil, nil
	trials.Put(t)
}

func admitted(refused bool) string {
	if refused {
		return "refused"
	}
	return "admitted"
}

func init() { metrics = append(metrics, shadowTotal) }

// openShadow compiles a candidate beside the policies of an app or a handler; complete is theirs.
func (a *App) openShadow(path, place string, complete func(*policy.Document) error) (*enforced, error) {
	if a.shadows == nil {
		a.shadows = startShadows(a.store)
	}
	return a.openFile(&policyFile{path: path, place: place + ", shadow policy", complete: func(d *policy.Document) error {
		if err := complete(d); err != nil {
			return err
		}
		d.Name += shadowSuffix
		return nil
	}})
}
