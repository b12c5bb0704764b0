// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/status"
)

func init() {
	caddy.RegisterModule(new(Status))
	httpcaddyfile.RegisterHandlerDirective("penstock_status", parseStatus)
}

// Status returns the asking client's remaining allowance as JSON, and charges nothing. Status
// covers the limits of the `penstock` app and of the site's `penstock` handlers. Place it before
// these handlers, so that they do not charge the status request:
//
//	{"client":"192.0.2.7","identity":"ip","limits":[
//	  {"policy":"api","limit":100,"window":"60s","remaining":97,"reset":1764547260}
//	]}
//
// `reset` is the same time as X-RateLimit-Reset. A client that has exhausted a limit gets
// `retry_after`, and one with a penalty gets `penalized`, both in seconds. The response omits
// limits that are hidden from clients, and limits whose key needs a property that the status
// request lacks. Status reads at most 64 counters of each policy. If the last of them is a shard,
// the other shards of its rule are read as well.
//
// Each status request costs one store call for each policy, and more calls for many shards. One
// address (IPv6: 64 bits) gets at most 50 answers a second; further requests get 429. At most 64
// requests are answered at a time; further requests get 503.
type Status struct {
	// The site whose handlers are reported. The value is the same as in those handlers. The
	// Caddyfile writes the addresses of the site here. Default: the name of the server.
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

// sitePolicies maps each site to the policies that its handlers enforce. The type is safe for
// concurrent use. The zero sitePolicies is empty.
type sitePolicies struct {
	mu sync.Mutex
	of map[string][]*live.Policy
}

func (b *sitePolicies) addPolicies(site string, policies []*live.Policy) {
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

// ServeHTTP answers the request. ServeHTTP does not call the next handler.
func (s *Status) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	scratch := scratches.Get().(*scratchSpace)
	defer scratch.release()
	scratch.attrs.reset(r, varsOf(r))
	if ok, busy := s.app.store.statuses.Enter(scratch.attrs.peer, time.Now()); !ok {
		code := http.StatusTooManyRequests
		if busy {
			code = http.StatusServiceUnavailable
		}
		w.Header().Set("Retry-After", "1")
		return caddyhttp.Error(code, errors.New("too many requests for limits"))
	}
	answer, err := s.look(scratch)
	if err != nil {
		w.Header().Set("Retry-After", "1")
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	if answer.Denied() {
		w.Header().Set("WWW-Authenticate", status.Challenge)
		return caddyhttp.Error(http.StatusUnauthorized, errors.New("the credential was rejected"))
	}
	if err := answer.Write(w); err != nil {
		return caddyhttp.Error(http.StatusInternalServerError, err)
	}
	return nil
}

// Status.look returns the allowance of the client of a request. The request then leaves its place,
// before the answer is written. A client that does not read must not keep a place.
func (s *Status) look(scratch *scratchSpace) (answer status.Answer, err error) {
	defer s.app.store.statuses.Leave()
	look := &status.Looker{Store: s.app.store, Directory: s.app.store.directory, Plan: &scratch.plan}
	policies := s.app.sites.get(s.Site)
	if len(policies) == 0 {
		policies = s.app.policies
	}
	for _, e := range policies {
		now := e.Current()
		rs := look.Choose(func(p *core.Plan) *core.Ruleset { return now.Choose(p, &scratch.attrs).Ruleset })
		if err := answer.Add(look, rs, &scratch.attrs); err != nil {
			return answer, err
		}
	}
	return answer, nil
}

var (
	_ caddy.Provisioner           = (*Status)(nil)
	_ caddyhttp.MiddlewareHandler = (*Status)(nil)
)
