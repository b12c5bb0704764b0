// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/throttle"
)

// scratchSpace is the reusable working memory for deciding one request.
type scratchSpace struct {
	plan     core.Plan
	versions []*live.Version // the versions of the policies that apply to the request
	later    []*Handler      // the later handlers whose policies are in the plan
	attrs    attributes
	fields   response.Writer
	body     []byte
	wait     throttle.Wait
	decision core.Decision
	failure  error    // the error of the last call of the store, or nil
	asks     *Handler // the handler of the request that waits
	// settlement is an unused settlement, kept for the next request.
	settlement *settlement
}

var scratches = sync.Pool{New: func() any { return new(scratchSpace) }}

// scratchBodyBytesMax is the largest body buffer to keep for reuse. The names in a body have a
// maximum length, so most bodies are far smaller.
const scratchBodyBytesMax = 4096

func (s *scratchSpace) release() {
	s.attrs.release()
	if cap(s.body) > scratchBodyBytesMax {
		s.body = nil
	}
	scratches.Put(s)
}

// ServeHTTP decides the request, and then passes it on or answers it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	h.app.store.hold()
	defer h.app.store.release()
	vars := varsOf(r)
	rec := recordOf(r, vars)
	span := enforce.SpanWithin(r.Context())
	s := scratches.Get().(*scratchSpace)
	s.plan.Reset()
	s.failure = nil
	useDirectory(&s.plan, h.app.store.directory)
	s.attrs.reset(r, vars)
	if h.rejectsRequest(w, r, &s.attrs) {
		s.release()
		return nil
	}
	keepHTTP(r)
	s.versions, s.later = s.versions[:0], s.later[:0]
	s.addPolicies(h.policies, rec)
	if len(s.versions) == 0 {
		s.release()
		return rec.passObserved(w, r, h.tryOut(rec, r, false, nil), next)
	}
	s.addLater(h, rec, r)
	s.resolve(&s.plan, h.app.store.directory)
	if h.lenient != nil {
		h.warnOfForwarding(vars)
	}
	if !s.attrs.peer.IsValid() && h.nameless.CompareAndSwap(false, true) {
		h.logger.Warn("requests come without a client address, as over a Unix socket: rules that count by address count " +
			"all clients as one; if a proxy is in front, set trusted_proxies_unix, so that the address it forwards is used")
	}
	d := &s.decision
	if gone := h.decide(r, s); gone {
		s.release()
		w.WriteHeader(statusClientGone) // the status is for the log, because the client has disconnected
		return nil
	}
	if d.Rule == "" {
		d.Rule = s.plan.BlockedBy()
	}
	rec.storeDecision(d)
	h.app.store.enforcer.Count(&s.plan, d, s.versions...)
	span.End(&s.plan, d, s.failure, s.versions...)
	waiting := h.tryOut(rec, r, d.Denied(), nil)
	for _, later := range s.later {
		waiting = later.tryOut(rec, r, d.Denied(), waiting)
	}
	if d.Outcome == core.OutcomeNone {
		s.release()
		return rec.passObserved(w, r, waiting, next)
	}
	own := rec.responder(w)
	own.setFields(s.fields.Headers(&s.plan, d), d.Remaining)
	if d.Denied() {
		rec.deniedBy = own
		return h.deny(own, r, s, d)
	}
	own.settlement = waiting
	if due := s.settlementOf(d); due != nil {
		due.store, due.next = h.app.store, waiting
		due.client = h.app.store.enforcer.ClientOf(&s.plan)
		own.settlement = due
	}
	s.release()
	err := own.pass(r, next)
	own.applyFields() // the header may be written later, but not through this writer, so set the fields now
	return err
}

// Handler.decide decides the request. If the plan has checks, the method asks the store. The
// result gone is true if the client has left before that, or while the request waited.
func (h *Handler) decide(r *http.Request, s *scratchSpace) (gone bool) {
	checks := s.plan.Checks()
	if len(checks) == 0 {
		s.decision = s.plan.Decide()
		return false
	}
	if hasLeft(r) {
		return true
	}
	if throttled := s.plan.Throttled(); len(throttled) > 0 {
		s.decision, gone = h.decideThrottled(r, s, throttled)
		return gone
	}
	gone, s.failure = h.app.store.enforcer.AskOrWait(r.Context(), &s.plan, checks, &s.decision)
	return gone
}

// hasLeft reports whether the client has reset the stream of the request, or closed the connection
// of the stream. Such a request is not passed on, so it is not charged. Otherwise the requests of a
// client that resets thousands of streams at once, again and again, would wait for the store
// together with those of the streams before. The context of a request over HTTP/1 also ends if the
// client only sends nothing more, and still waits for the response.
func hasLeft(r *http.Request) bool { return r.ProtoMajor > 1 && r.Context().Err() != nil }

// askStore asks the store and decides. askStore reports whether the store answered. If the store
// did not answer, on_error decides, or the request is denied because too many requests wait for the
// store.
func (h *Handler) askStore(s *scratchSpace, checks []counter.Check) (d core.Decision, answered bool) {
	d, s.failure = h.app.store.enforcer.Ask(&s.plan, checks)
	return d, s.failure == nil
}

// Handler.deny answers a denied request or leaves the answer to error routes. It releases s.
func (h *Handler) deny(w *responder, r *http.Request, s *scratchSpace, d *core.Decision) error {
	defer s.release()
	h.emit(r, d)
	// A response to a gRPC request has the status 200, and any client can send a GET as gRPC.
	// Without the field, a cache would serve the response to other clients.
	w.Header()["Cache-Control"] = []string{"no-store"}
	a := s.responseTo(r, d)
	if h.delegates && r.Context().Value(caddyhttp.ErrorCtxKey) == nil {
		w.applyFields()
		a.body = append([]byte(nil), a.body...)
		return caddyhttp.Error(d.Status, &Denial{Status: d.Status, Rule: d.Rule, answer: a})
	}
	a.write(w, r)
	return nil
}

// warnOfForwarding warns once that clients can choose their own address. warnOfForwarding logs at
// the first request from a trusted proxy, because only then is it known that the server has trusted
// proxies.
func (h *Handler) warnOfForwarding(vars map[string]any) {
	if !h.lenient.Load() {
		return
	}
	trusted, _ := vars[caddyhttp.TrustedProxyVarKey].(bool)
	if trusted && h.lenient.CompareAndSwap(true, false) {
		h.logger.Warn("trusted_proxies is set without trusted_proxies_strict: unless every proxy replaces X-Forwarded-For, " +
			"clients can choose the address they are counted by; set trusted_proxies_strict")
	}
}
