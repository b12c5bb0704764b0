// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/policyfile"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler limits requests. A Handler enforces the policy of the `penstock` app and its own rules in
// a single step. The step includes the rules of the `penstock` handlers that the request reaches
// next, if there is no other handler in between. A Handler charges each rule once per request, even
// if the request passes several handlers, or the same handler several times.
//
// A request over a limit is answered 429 with an `application/problem+json` body, unless error
// routes (`handle_errors`) provide a response. Every response carries the rate limit fields, even
// an error.
//
// A rule may define its own response to denied requests. A gRPC request is answered with HTTP 200
// and a `grpc-status`.
//
// After a request has passed the handler, these placeholders are set: `{http.penstock.decision}`
// (`allowed`, `denied`, `penalized`, `unauthorized`, `blocked`, `exempt`, `missing`, `oversized`,
// `none`, `degraded_allowed`, `degraded_local`, `degraded_denied`), `{http.penstock.rule}`,
// `{http.penstock.limit}`, `{http.penstock.remaining}` and `{http.penstock.retry_after}` (seconds).
// The client is described by `{http.penstock.client}`, `{http.penstock.identity}` (how it was
// identified: `user`, `api_key`, `ip`), `{http.penstock.user}`, `{http.penstock.tenant}` and
// `{http.penstock.tier}`. A denied request emits the event `penstock_denied`.
//
// If a client disconnects while its request waits in a throttle queue, the request is neither
// admitted nor denied. The request is charged nothing, and the log records status 499. The handler
// notices the disconnect as soon as the request body has been read, or else at the end of the wait.
// The same applies to a request over HTTP/2 or HTTP/3 whose client resets its stream or disconnects
// before the handler has asked the store.
type Handler struct {
	// The namespace of the counters of this handler's rules. If the counters are in memory, each
	// site has its own namespace by default. With a shared store, the default is the name of the
	// app, which is then required.
	Name string `json:"name,omitempty"`

	// The identifier of this site. Handlers of one site that have no name share a namespace, and
	// penstock_status reports the limits of its own site. The Caddyfile writes the addresses of the
	// site here. Default: the name of the server.
	Site string `json:"site,omitempty"`

	// A policy file (.yaml, .toml or .json) to enforce besides the rules of this handler. A
	// relative path is relative to the working directory; the Caddyfile makes it relative to the
	// Caddyfile.
	Policy string `json:"policy,omitempty"`

	// A policy that a control plane publishes in Redis, instead of a file. Default: none.
	PolicyRedis *PublishedPolicy `json:"policy_redis,omitempty"`

	// A policy that a control plane publishes, read from its API, instead of a file. Default: none.
	PolicyHTTP *HTTPPolicy `json:"policy_http,omitempty"`

	// A policy file to try out on the requests of this handler, besides the policies in force.
	// Metrics count the requests that only the candidate would deny, and those that only the
	// candidate would admit. The candidate denies nothing, has its own counters, and costs one more
	// store call for each request.
	ShadowPolicy string `json:"shadow_policy,omitempty"`

	PolicyWords

	app      *App
	ctx      caddy.Context
	logger   *zap.Logger
	policies []*live.Policy
	server   string         // the name of the handler's server
	tried    []*live.Policy // candidate policies
	// delegates reports whether error routes may answer a denied request.
	delegates bool
	lenient   *atomic.Bool // set while the warning about trusted proxies is due; nil if it is not needed
	nameless  atomic.Bool  // the warning about requests without an address was logged
	link      func()       // sets later for all handlers of the server; nil without a server
	later     *position    // what comes next after the handler
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.penstock", New: func() caddy.Module { return new(Handler) }}
}

// Provision compiles the handler's rules. The error lists all problems.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := ctx.App("penstock")
	if err != nil {
		return err
	}
	h.app, h.ctx, h.logger = app.(*App), ctx, ctx.Logger()
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil {
		h.server, h.link = server.Name(), h.app.linkOf(server)
		h.Site = cmp.Or(h.Site, h.server)
		if server.TrustedProxiesStrict == 0 {
			h.lenient = new(atomic.Bool)
			h.lenient.Store(true)
		}
	}
	h.delegates = delegateErrors(ctx, server)
	h.policies = append(h.policies, h.app.policies...)
	h.tried = append(h.tried, h.app.tried...)
	err = errors.Join(err, h.addSourced())
	if h.ShadowPolicy != "" {
		err = errors.Join(err, h.addShadow())
	}
	if len(h.Rules) > 0 {
		d := h.document(h.Name)
		fillFromApp(d, &h.app.PolicyWords)
		err = errors.Join(err, h.openPolicy(d))
	}
	h.app.sites.addPolicies(h.Site, h.policies)
	h.warnOfAccessLog(server)
	return err
}

// warnOfAccessLog warns if the server has an access log that shows credentials of the handler's
// policies. Caddy leaves out only Authorization and Cookie. The handler does not know the formats
// of the logs, so it may warn without need.
func (h *Handler) warnOfAccessLog(server *caddyhttp.Server) {
	if server == nil || server.Logs == nil || server.Logs.ShouldLogCredentials { // the operator has set ShouldLogCredentials on purpose
		return
	}
	for _, p := range h.policies {
		for _, place := range p.Current().Document.LoggedCredentials() {
			if _, warned := h.app.logged.LoadOrStore(h.server+" "+place, true); warned {
				continue
			}
			field := "request>uri"
			if name, ok := strings.CutPrefix(place, "header "); ok {
				field = "request>headers>" + name
			}
			h.logger.Warn("the access log shows credentials in clear, unless its format leaves them out: write \"format filter\" with "+
				"the field below in its log directive", zap.String("server", h.server), zap.String("credential", place),
				zap.String("field", field))
		}
	}
}

// Handler.fillDefaults sets what a policy file leaves to the handler.
func (h *Handler) fillDefaults(d *policyfile.Document) error {
	h.fillFromBlock(d)
	fillFromApp(d, &h.app.PolicyWords)
	return h.name(d)
}

// addSourced opens the handler's policy from a file, from Redis or from an API, if one of them is
// named.
func (h *Handler) addSourced() error {
	policies, tried, err := h.app.openSourced(h.from(), h.place(), h.fillDefaults)
	h.policies, h.tried = append(h.policies, policies...), append(h.tried, tried...)
	return err
}

// Handler.from returns the places from which the handler's policy may come.
func (h *Handler) from() *policyPlaces {
	return &policyPlaces{h.Policy, h.PolicyRedis, h.PolicyHTTP}
}

func (h *Handler) addShadow() error {
	e, err := h.app.openShadowFile(h.ShadowPolicy, h.place(), h.fillDefaults)
	if err == nil {
		h.tried = append(h.tried, e)
	}
	return err
}

// openPolicy opens a policy of the handler.
func (h *Handler) openPolicy(d *policyfile.Document) error {
	p, err := h.app.open(live.Fixed(d), h.place(), h.name)
	if err == nil {
		h.policies = append(h.policies, p)
	}
	return err
}

// Handler.place returns a name for the place of the handler's policies. Equal policies in the same
// place are shared.
func (h *Handler) place() string {
	if h.Name != "" {
		return fmt.Sprintf("site %q", cmp.Or(h.server, h.Site))
	}
	return fmt.Sprintf("site %q", h.Site)
}

// Handler.name sets the namespace of d, a policy of the handler, if it has none.
func (h *Handler) name(d *policyfile.Document) error {
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

// Validate rejects a handler that has nothing to enforce.
func (h *Handler) Validate() error {
	if len(h.policies)+len(h.tried) == 0 {
		return errors.New("nothing to enforce: this penstock handler has no rule and the penstock app has no policy; " +
			"write a limit (penstock 100/1m), a rule or a policy file")
	}
	if len(h.Rules) == 0 && h.from().count() == 0 && h.ShadowPolicy == "" && (h.Name != "" || !h.empty()) {
		return errors.New("this penstock block has settings for rules but has no rule; add one, or move the settings to the global " +
			"penstock block")
	}
	return nil
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
