// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler limits requests. It enforces the policy of the `penstock` app and its own rules, together and in one step. A
// request that passes several handlers, or one handler several times, is charged for each rule once.
//
// A request over a limit is answered 429 with an `application/problem+json` body, unless error routes (`handle_errors`)
// make an answer of their own. Every answer carries the rate limit fields, errors included.
//
// A rule may give refusals a response of its own. gRPC requests are answered in gRPC's form: HTTP 200 and `grpc-status`.
//
// After a request has passed the handler there are the placeholders `{http.penstock.decision}` (`allowed`, `denied`,
// `penalized`, `unauthorized`, `blocked`, `exempt`, `missing`, `none`, `degraded_allowed`, `degraded_denied`),
// `{http.penstock.rule}`, `{http.penstock.limit}`, `{http.penstock.remaining}`, `{http.penstock.retry_after}` (seconds),
// and who the client is: `{http.penstock.client}`, `{http.penstock.identity}` (how that was found: `user`, `api_key`,
// `ip`), `{http.penstock.user}`, `{http.penstock.tenant}` and `{http.penstock.tier}`. A refusal emits the event
// `penstock_denied`.
//
// A request that waits for a throttle rule and whose client leaves is neither admitted nor refused: it is charged
// nothing, and the log has status 499. That the client has left is noticed once the request's body has been read, or at
// the end of the wait.
type Handler struct {
	// The namespace of the counters of this handler's rules. Default: in memory one for each site; with a shared store
	// the name of the app, and if that has none either it is an error.
	Name string `json:"name,omitempty"`

	// What tells this site from others: without a name, handlers of one site share a namespace, and penstock_status tells
	// of those of its site. The Caddyfile writes the addresses of the site here. Default: the name of the server.
	Site string `json:"site,omitempty"`

	// A policy file (.yaml, .toml or .json) to enforce besides the rules of this handler. A relative path is relative to
	// the working directory; the Caddyfile makes it relative to the Caddyfile.
	Policy string `json:"policy,omitempty"`

	// A policy file to try out on the requests of this handler, besides what is in force: metrics tell what it would
	// refuse that the policies in force admit, and the reverse. It refuses nothing, and its counters are its own. It asks
	// the store once more for each request.
	ShadowPolicy string `json:"shadow_policy,omitempty"`

	PolicyWords

	app      *App
	ctx      caddy.Context
	logger   *zap.Logger
	policies []*enforced
	server   string      // that the handler is in
	tried    []*enforced // candidates
	// delegates is whether error routes may answer for a refused request.
	delegates bool
	lenient   *atomic.Bool // the server believes forwarded addresses loosely, and that has not been said yet; or nil
	nameless  atomic.Bool  // it has been said that requests come without an address
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.penstock", New: func() caddy.Module { return new(Handler) }}
}

// Provision compiles the handler's rules. The error lists everything that is wrong.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := ctx.App("penstock")
	if err != nil {
		return err
	}
	h.app, h.ctx, h.logger = app.(*App), ctx, ctx.Logger()
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil {
		h.server = server.Name()
		h.Site = cmp.Or(h.Site, h.server)
		if server.TrustedProxiesStrict == 0 {
			h.lenient = new(atomic.Bool)
			h.lenient.Store(true)
		}
	}
	h.delegates = delegateErrors(ctx, server)
	h.policies = append(h.policies, h.app.policies...)
	if h.Policy != "" {
		err = errors.Join(err, h.addFile())
	}
	h.tried = append(h.tried, h.app.tried...)
	if h.ShadowPolicy != "" {
		err = errors.Join(err, h.addShadow())
	}
	if len(h.Rules) > 0 {
		d := h.document(h.Name)
		inherit(d, &h.app.PolicyWords)
		err = errors.Join(err, h.add(d))
	}
	h.app.sites.add(h.Site, h.policies)
	return err
}

func (h *Handler) addFile() error {
	e, err := h.app.openFile(&policyFile{path: h.Policy, place: h.place(), complete: func(d *policy.Document) error {
		h.govern(d)
		inherit(d, &h.app.PolicyWords)
		return h.name(d)
	}})
	if err == nil {
		h.policies = append(h.policies, e)
	}
	return err
}

func (h *Handler) addShadow() error {
	e, err := h.app.openShadow(h.ShadowPolicy, h.place(), func(d *policy.Document) error {
		h.govern(d)
		inherit(d, &h.app.PolicyWords)
		return h.name(d)
	})
	if err == nil {
		h.tried = append(h.tried, e)
	}
	return err
}

// add makes a policy one of the handler's.
func (h *Handler) add(d *policy.Document) error {
	if err := h.name(d); err != nil {
		return err
	}
	e, err := h.app.compile(d, h.place())
	if err == nil {
		h.policies = append(h.policies, e)
	}
	return err
}

// place says where the handler's policies are written. Sites whose policies have one name share them, if they say the
// same.
func (h *Handler) place() string {
	if h.Name != "" {
		return fmt.Sprintf("site %q", cmp.Or(h.server, h.Site))
	}
	return fmt.Sprintf("site %q", h.Site)
}

// name gives a policy of the handler a namespace if it has none.
func (h *Handler) name(d *policy.Document) error {
	d.Name = cmp.Or(d.Name, h.Name)
	if d.Name == "" && h.app.shared {
		d.Name = h.app.Name
		if d.Name == "" {
			return errNameMissing
		}
	}
	d.Name = cmp.Or(d.Name, siteNamespace(h.Site), "default")
	return nil
}

// Validate refuses a handler that has nothing to do.
func (h *Handler) Validate() error {
	if len(h.policies)+len(h.tried) == 0 {
		return errors.New("there is nothing to enforce: this penstock handler has no rule and the penstock app has no policy; " +
			"write a limit (penstock 100/1m), a rule or a policy file")
	}
	if len(h.Rules) == 0 && h.Policy == "" && h.ShadowPolicy == "" && (h.Name != "" || !h.empty()) {
		return errors.New("this penstock block says how its rules work but has no rule; add one, or say it in the global " +
			"penstock block, for whose policy it seems to be meant")
	}
	return nil
}

// scratch is what deciding a request needs and the next request can use again.
type scratch struct {
	plan     core.Plan
	editions []*edition // of the policies that the request is under
	attrs    attributes
	body     []byte
	looking  []core.Check // the plan's checks as looks
	looked   bool
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
	s.editions, s.looked = s.editions[:0], false
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

// ask asks the store and decides. It reports whether the store has answered; otherwise on_error has decided.
func (h *Handler) ask(s *scratch, checks []core.Check) (d core.Decision, answered bool) {
	start := time.Now()
	// A client that leaves does not end the check, which ends by itself at the store's deadline: a context that can end
	// costs each lone call half as much again.
	err := h.app.store.Take(context.Background(), checks, s.plan.Results())
	took := time.Since(start)
	checkSeconds.Observe(took.Seconds())
	if err == nil {
		return s.plan.Decide(), true
	}
	d = s.plan.Degrade()
	storeErrorsTotal.WithLabelValues(failureKind(err)).Inc()
	h.app.outage.note(h.logger, start.Add(took), &d, err)
	return d, false
}

// count counts what became of each rule, and what the credentials were worth.
func (s *scratch) count() {
	for _, e := range s.editions {
		for _, c := range s.plan.Credentials() {
			if c.Ruleset == e.ruleset {
				e.credentials.inc(c.Method, c.State)
			}
		}
		e.count(s.plan.Outcomes())
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

// DeniedEvent is the name of the event that a refusal emits. Its data are `policy`, `rule`, `decision`, `status`,
// `client`, `identity`, `user`, `tenant`, `tier`, `credential` (what is wrong with it, of a 401), `limit`, `remaining`,
// `retry_after` (seconds), `host`, `method` and `path`.
const DeniedEvent = "penstock_denied"

// emit tells those who listen; making an event costs more than a decision, so that is asked first.
func (h *Handler) emit(r *http.Request, d *core.Decision) {
	if !h.app.events.ShouldEmit(DeniedEvent) {
		return
	}
	var limit int64
	if d.Limit != nil {
		limit = d.Limit.Capacity()
	}
	credential := ""
	if d.Outcome == core.OutcomeUnauthorized {
		credential = d.Credential.String()
	}
	h.app.events.Emit(h.ctx, DeniedEvent, map[string]any{
		"policy": d.Policy, "rule": d.Rule, "decision": d.Outcome.String(), "status": d.Status,
		"client": strings.Clone(d.Client.ID), "identity": d.Client.Kind, "user": strings.Clone(d.Client.User),
		"tenant": strings.Clone(d.Client.Tenant), "tier": strings.Clone(d.Client.Tier), "credential": credential,
		"limit": limit, "remaining": d.Remaining,
		"retry_after": retryAfterSeconds(d.RetryAfter), "host": r.Host, "method": r.Method, "path": r.URL.Path,
	})
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

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
