// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
)

func init() {
	caddy.RegisterModule(new(Status))
	httpcaddyfile.RegisterHandlerDirective("penstock_status", parseStatus)
}

// Status answers with what the asking client has left under the limits of the `penstock` app and of the site's
// `penstock` handlers, as JSON, and spends nothing of it. It stands before those handlers, so that they do not count the
// question.
//
//	{"client":"192.0.2.7","identity":"ip","limits":[{"policy":"api","limit":100,"window":"60s","remaining":97,"reset":1764547260}]}
//
// `reset` is when X-RateLimit-Reset says. A client that has used a limit up is told `retry_after`, one that has a penalty
// `penalized`, both in seconds. Limits that clients are not told about are left out, and so are those that count by
// something that this request lacks. Of each policy at most 64 counters are looked at.
//
// A question costs a step of the store for each policy. Where anybody may ask, that is to be limited by something else,
// or the matcher narrowed.
type Status struct {
	// The site whose handlers are meant, as in the handlers themselves. The Caddyfile writes its addresses here. Default:
	// the name of the server.
	Site string `json:"site,omitempty"`

	app *App
}

// CaddyModule returns the Caddy module information.
func (*Status) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.penstock_status", New: func() caddy.Module { return new(Status) }}
}

// Provision finds the app.
func (s *Status) Provision(ctx caddy.Context) error {
	app, err := ctx.App("penstock")
	if err != nil {
		return err
	}
	s.app = app.(*App)
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		s.Site = cmp.Or(s.Site, server.Name())
	}
	return nil
}

// parseStatus reads the penstock_status directive:
//
//	penstock_status [<matcher>]
func parseStatus(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	h.Next()
	if h.NextArg() {
		return nil, h.Errf("penstock_status takes a matcher and nothing else, not %q", h.Val())
	}
	for nesting := h.Nesting(); h.NextBlock(nesting); {
		return nil, h.Errf("penstock_status takes no block")
	}
	return &Status{Site: siteOf(h)}, nil
}

// siteBook says which policies the handlers of each site enforce. Safe for concurrent use: the zero siteBook is empty.
type siteBook struct {
	mu sync.Mutex
	of map[string][]*enforced
}

func (b *siteBook) add(site string, policies []*enforced) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = make(map[string][]*enforced)
	}
	known := b.of[site]
	for _, e := range policies {
		if !slices.Contains(known, e) {
			known = append(known[:len(known):len(known)], e)
		}
	}
	b.of[site] = known
}

func (b *siteBook) get(site string) []*enforced {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[site]
}

// status is the answer.
type status struct {
	Client    string        `json:"client"`
	Identity  string        `json:"identity"`
	User      string        `json:"user,omitempty"`
	Tenant    string        `json:"tenant,omitempty"`
	Tier      string        `json:"tier,omitempty"`
	Penalized int64         `json:"penalized,omitempty"`
	Limits    []statusLimit `json:"limits"`

	refused bool // for its credential
}

type statusLimit struct {
	Policy     string `json:"policy"`
	Limit      int64  `json:"limit"`
	Window     string `json:"window"`
	Remaining  int64  `json:"remaining"`
	Reset      int64  `json:"reset"`
	RetryAfter int64  `json:"retry_after,omitempty"`

	rule int // a client's own limits of one rule can be called as another rule
}

// ServeHTTP answers; the handlers behind it are not called.
func (s *Status) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	scratch := scratches.Get().(*scratch)
	defer scratch.release()
	scratch.attrs.reset(r)
	answer := status{Limits: []statusLimit{}}
	policies := s.app.sites.get(s.Site)
	if len(policies) == 0 {
		policies = s.app.policies
	}
	for _, e := range policies {
		if err := s.look(scratch, e.current.Load(), &answer); err != nil {
			return caddyhttp.Error(http.StatusServiceUnavailable, err)
		}
	}
	if answer.refused && answer.Identity == "" {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		return caddyhttp.Error(http.StatusUnauthorized, errors.New("the credential is refused"))
	}
	text, err := json.Marshal(&answer)
	if err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(text, '\n')) // who does not wait for it is no error
	return nil
}

// look adds what the client has left under one policy.
func (s *Status) look(scratch *scratch, e *edition, answer *status) error {
	p, before := &scratch.plan, len(answer.Limits)
	for from, first := 0, true; first || from%core.ShardsMax > 0; first = false { // one page, and the rest of a rule's shards
		p.Reset()
		from = p.AddAll(e.ruleset, &scratch.attrs, from)
		if first {
			answer.tell(p)
		}
		checks := p.Checks()
		if len(checks) == 0 {
			return nil
		}
		if err := s.app.store.Take(context.Background(), checks, p.Results()); err != nil {
			return err
		}
		answer.add(p, before)
	}
	return nil
}

// add adds what a page says of the client under one policy, whose limits stand from before on.
func (a *status) add(p *core.Plan, before int) {
	for i := range p.Checks() {
		counter, result := p.Counter(i), &p.Results()[i]
		switch {
		case counter.Rule < 0 && result.Refused:
			a.Penalized = max(a.Penalized, secondsUp(result.Wait))
		case counter.Rule < 0 || counter.Hidden:
		default:
			one := statusOf(counter.Policy, counter.Limit, result)
			one.rule = counter.Rule
			at := slices.IndexFunc(a.Limits[before:], func(l statusLimit) bool {
				return l.rule == counter.Rule && l.Policy == counter.Policy
			})
			if at < 0 {
				a.Limits = append(a.Limits, one)
				continue
			}
			a.Limits[before+at].include(&one)
		}
	}
}

// include adds another shard of the same limit.
func (l *statusLimit) include(other *statusLimit) {
	l.Remaining += other.Remaining
	l.Reset, l.RetryAfter = max(l.Reset, other.Reset), min(l.RetryAfter, other.RetryAfter)
}

// tell says who the client is, as the first policy that finds somebody says.
func (a *status) tell(p *core.Plan) {
	for _, c := range p.Credentials() {
		a.refused = a.refused || c.State != core.CredentialValid
	}
	client := p.Identity()
	if a.Identity != "" || client.Kind == "" {
		return
	}
	a.Identity, a.Client = client.Kind, strings.Clone(client.ID)
	a.User, a.Tenant, a.Tier = strings.Clone(client.User), strings.Clone(client.Tenant), strings.Clone(client.Tier)
}

func statusOf(policy string, limit *core.Limit, result *core.Result) statusLimit {
	l := statusLimit{Policy: policy, Limit: limit.Capacity(), Window: limit.WindowLabel(), Remaining: result.Remaining,
		Reset: secondsUp(result.At + max(result.Reset, core.Second))}
	if result.Refused {
		l.RetryAfter = max(1, secondsUp(result.Wait))
	}
	return l
}

// secondsUp returns whole seconds, rounded up.
func secondsUp(m core.Micros) int64 { return int64((m + core.Second - 1) / core.Second) }

var (
	_ caddy.Provisioner           = (*Status)(nil)
	_ caddyhttp.MiddlewareHandler = (*Status)(nil)
)
