// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

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

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
