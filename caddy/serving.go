// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/tally"
	"github.com/penstock/penstock/internal/throttle"
)

// scratch is what deciding a request needs and the next request can use again.
type scratch struct {
	plan     core.Plan
	editions []*edition // of the policies that the request is under
	attrs    attributes
	body     []byte
	wait     throttle.Wait
	asks     *Handler // for the one that waits
	// settlement is one that was not needed yet.
	settlement *settlement
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// scratchBodyBytesMax is how large a body's buffer may be to be kept: names in it are bounded, so most are far smaller.
const scratchBodyBytesMax = 4096

func (s *scratch) release() {
	s.attrs.release()
	if cap(s.body) > scratchBodyBytesMax {
		s.body = nil
	}
	scratches.Put(s)
}

// ServeHTTP decides the request and passes it on, or answers it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	h.app.store.hold()
	defer h.app.store.release()
	rec := recordOf(r)
	s := scratches.Get().(*scratch)
	s.plan.Reset()
	s.attrs.reset(r)
	if !s.attrs.served() {
		s.release()
		refuseTarget(w)
		return nil
	}
	s.editions = s.editions[:0]
	for _, e := range h.policies {
		if rec.begin(e) {
			now := e.current.Load()
			s.editions = append(s.editions, now)
			s.plan.Add(now.ruleset, &s.attrs)
		}
	}
	if len(s.editions) == 0 {
		s.release()
		return rec.observed(w, r, h.tryOut(rec, r, false), next)
	}
	if h.lenient != nil {
		h.warnOfForwarding(r)
	}
	if !s.attrs.peer.IsValid() && h.nameless.CompareAndSwap(false, true) {
		h.logger.Warn("requests come without a client address, as over a Unix socket: where clients are told apart by address, " +
			"they count as one; if a proxy is in front, set trusted_proxies_unix, so that the address it forwards is used")
	}
	d, gone := h.decide(r, s)
	if gone {
		s.release()
		w.WriteHeader(statusClientGone) // for the log: nobody reads it
		return nil
	}
	rec.keep(&d)
	s.count()
	waiting := h.tryOut(rec, r, d.Refused())
	if d.Outcome == core.OutcomeNone {
		s.release()
		return rec.observed(w, r, waiting, next)
	}
	own := rec.responder(w)
	fields := s.plan.Headers(&d)
	own.tell(fields, d.Remaining)
	if d.Refused() {
		rec.refusedBy = own
		return h.refuse(own, r, s, &d, fields.Authenticate)
	}
	own.settlement = waiting
	if due := s.settlementOf(&d); due != nil {
		due.settler, due.next = h.app.store.settler, waiting
		own.settlement = due
	}
	s.release()
	err := own.pass(r, next)
	own.apply() // an error, or nothing written: the header is written later, but not through us
	return err
}

// decide asks the store, if there is something to ask. It reports whether the client has left while the request waited.
func (h *Handler) decide(r *http.Request, s *scratch) (d core.Decision, gone bool) {
	if len(s.plan.Checks()) == 0 {
		return s.plan.Decide(), false
	}
	if throttled := s.plan.Throttled(); len(throttled) > 0 {
		return h.decideThrottled(r, s, throttled)
	}
	d, _ = h.ask(s, s.plan.Checks())
	return d, false
}

// ask asks the store and decides. It reports whether the store has answered; otherwise on_error has decided, or
// the request is refused since too many others wait for the store.
func (h *Handler) ask(s *scratch, checks []core.Check) (d core.Decision, answered bool) {
	start := time.Now()
	// A client that leaves does not end the check, which ends by itself at the store's deadline: a context that can end
	// costs each lone call half as much again.
	err := h.app.store.Take(context.Background(), checks, s.plan.Results())
	took := time.Since(start)
	common.CheckSeconds.Observe(took.Seconds())
	if err == nil {
		if d = s.plan.Decide(); d.Degraded {
			h.app.outage.note(h.logger, start.Add(took), &d, nil)
		}
		return d, true
	}
	d = s.plan.Fail(err)
	common.StoreErrors.WithLabelValues(tally.FailureKind(err)).Inc()
	h.app.outage.note(h.logger, start.Add(took), &d, err)
	return d, false
}

// count counts what became of each rule, what the credentials were worth, and costs that headers did not say.
func (s *scratch) count() {
	if n := s.plan.UnreadableCosts(); n > 0 {
		common.Unreadable.Add(float64(n))
	}
	for _, e := range s.editions {
		e.credentials.Count(s.plan.Credentials())
		e.outcomes.Count(s.plan.Outcomes())
	}
}

// refuse answers a request that must not go on, or leaves that to error routes. It ends the scratch.
func (h *Handler) refuse(w *responder, r *http.Request, s *scratch, d *core.Decision, challenge string) error {
	defer s.release()
	h.emit(r, d)
	s.noteRefusal(d)
	a := s.answerTo(r, d, challenge)
	if h.delegates && r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
		w.apply()
		a.body = append([]byte(nil), a.body...)
		return caddyhttp.Error(d.Status, &Refusal{Status: d.Status, Rule: d.Rule, answer: a})
	}
	a.write(w, r)
	return nil
}

// warnOfForwarding says once, at the first request that came through a trusted proxy, that clients can choose their
// address: only then is it known that the server has trusted proxies.
func (h *Handler) warnOfForwarding(r *http.Request) {
	if !h.lenient.Load() {
		return
	}
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	if trusted && h.lenient.CompareAndSwap(true, false) {
		h.logger.Warn("trusted_proxies is set without trusted_proxies_strict: unless every proxy replaces X-Forwarded-For, " +
			"clients can choose the address they are counted by; set trusted_proxies_strict")
	}
}
