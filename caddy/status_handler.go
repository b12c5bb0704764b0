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
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/live"
)

func init() {
	caddy.RegisterModule(new(Status))
	httpcaddyfile.RegisterHandlerDirective("penstock_status", parseStatus)
}

// Status returns the asking client's remaining allowance as JSON, and charges nothing. It covers
// the limits of the `penstock` app and of the site's `penstock` handlers. It runs before these
// handlers, so that they do not charge the status request:
//
//	{"client":"192.0.2.7","identity":"ip","limits":[{"policy":"api","limit":100,"window":"60s","remaining":97,"reset":1764547260}]}
//
// `reset` is the same time as X-RateLimit-Reset. A client that has exhausted a limit gets
// `retry_after`, and one with a penalty gets `penalized`, both in seconds. The response omits
// limits that are hidden from clients, and limits that count by something the status request lacks.
// It reads at most 64 counters of each policy.
//
// Each status request costs one store call for each policy. If it is open to the public, limit it
// by other means or narrow its matcher.
type Status struct {
	// The site whose handlers to report, with the same value as in those handlers. The Caddyfile
	// writes the addresses of the site here. Default: the name of the server.
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

// sitePolicies maps each site to the policies that its handlers enforce. It is safe for concurrent
// use. The zero sitePolicies is empty.
type sitePolicies struct {
	mu sync.Mutex
	of map[string][]*live.Policy
}

func (b *sitePolicies) add(site string, policies []*live.Policy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = make(map[string][]*live.Policy)
	}
	known := b.of[site]
	for _, e := range policies {
		if !slices.Contains(known, e) {
			known = append(known[:len(known):len(known)], e)
		}
	}
	b.of[site] = known
}

func (b *sitePolicies) get(site string) []*live.Policy {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.of[site]
}

// status is the JSON response.
type status struct {
	Client    string        `json:"client"`
	Identity  string        `json:"identity"`
	User      string        `json:"user,omitempty"`
	Tenant    string        `json:"tenant,omitempty"`
	Tier      string        `json:"tier,omitempty"`
	Penalized int64         `json:"penalized,omitempty"`
	Limits    []statusLimit `json:"limits"`

	denied bool // a credential is not valid
}

type statusLimit struct {
	Policy     string `json:"policy"`
	Limit      int64  `json:"limit"`
	Window     string `json:"window"`
	Remaining  int64  `json:"remaining"`
	Reset      int64  `json:"reset"`
	RetryAfter int64  `json:"retry_after,omitempty"`

	rule int // the index of the rule; Policy does not identify it
}

// ServeHTTP answers the request. It does not call the next handler.
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
		if err := s.look(scratch, e.Current(), &answer); err != nil {
			return caddyhttp.Error(http.StatusServiceUnavailable, err)
		}
	}
	if answer.denied && answer.Identity == "" {
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		return caddyhttp.Error(http.StatusUnauthorized, errors.New("the credential was rejected"))
	}
	text, err := json.Marshal(&answer)
	if err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(text, '\n')) // a failed write is not an error
	return nil
}

// look adds the client's remaining allowance under one policy: one page of counters, and the pages
// with the remaining shards of its last rule.
func (s *Status) look(scratch *scratch, v *live.Version, answer *status) error {
	p, before := &scratch.plan, len(answer.Limits)
	counters := p.AllCounters(v.Ruleset, &scratch.attrs)
	s.app.store.directory.Prepare(context.Background(), p, counters)
	first, last := true, 0
	for checks := range counters {
		if first {
			answer.setClient(p)
		}
		if len(checks) == 0 || !first && p.Counter(0).Rule != last {
			return nil
		}
		first, last = false, p.Counter(len(checks)-1).Rule
		if err := s.app.store.Take(context.Background(), checks, p.Results()); err != nil {
			return err
		}
		answer.add(p, before)
	}
	return nil
}

// add adds the results of one page under one policy. The policy's limits start at index before.
func (a *status) add(p *core.Plan, before int) {
	for i := range p.Checks() {
		counter, result := p.Counter(i), &p.Results()[i]
		switch {
		case counter.Rule < 0 && result.Denied:
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

// include adds the result of another shard of the same limit.
func (l *statusLimit) include(other *statusLimit) {
	l.Remaining += other.Remaining
	l.Reset, l.RetryAfter = max(l.Reset, other.Reset), min(l.RetryAfter, other.RetryAfter)
}

// setClient records the client as identified by the first policy that identifies one.
func (a *status) setClient(p *core.Plan) {
	for _, c := range p.Credentials() {
		a.denied = a.denied || c.State != policy.CredentialValid
	}
	client := p.Identity()
	if a.Identity != "" || client.Kind == "" {
		return
	}
	a.Identity, a.Client = client.Kind, strings.Clone(client.ID)
	a.User, a.Tenant, a.Tier = strings.Clone(client.User), strings.Clone(client.Tenant), strings.Clone(client.Tier)
}

func statusOf(policy string, limit *counter.Limit, result *counter.Result) statusLimit {
	l := statusLimit{Policy: policy, Limit: limit.Capacity(), Window: limit.WindowLabel(), Remaining: result.Remaining,
		Reset: secondsUp(result.At + max(result.Reset, counter.Second))}
	if result.Denied {
		l.RetryAfter = max(1, secondsUp(result.Wait))
	}
	return l
}

// secondsUp converts to whole seconds, rounded up.
func secondsUp(m counter.Micros) int64 { return int64((m + counter.Second - 1) / counter.Second) }

var (
	_ caddy.Provisioner           = (*Status)(nil)
	_ caddyhttp.MiddlewareHandler = (*Status)(nil)
)
