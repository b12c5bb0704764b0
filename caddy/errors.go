// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// Refusal is the error within the [caddyhttp.HandlerError] of a refused request, where error routes may answer it.
type Refusal struct {
	Status int    // 429, 403 or 503
	Rule   string // the rule that refused; "" if its name is not for clients
	body   []byte
}

// Error says which rule refused.
func (r *Refusal) Error() string {
	if r.Rule == "" {
		return http.StatusText(r.Status)
	}
	return fmt.Sprintf("%s: rule %q", http.StatusText(r.Status), r.Rule)
}

// delegateErrors finds out whether there are error routes around a handler, and adds the answer to a refusal as their
// last one, for those that leave it unanswered (another site's, or handle_errors 404).
//
// Without error routes a handler writes its answer itself: the server would send an empty one, and would prepare a log
// entry for each that costs more than the request. An error route that a handler stands in itself is added to too late;
// it passes requests on, as error routes without an answer do.
func delegateErrors(ctx caddy.Context, server *caddyhttp.Server) bool {
	delegates := false
	add := func(config *caddyhttp.HTTPErrorConfig) {
		if config == nil || len(config.Routes) == 0 {
			return
		}
		delegates = true
		last := config.Routes[len(config.Routes)-1]
		if len(last.Handlers) == 1 {
			if _, ours := last.Handlers[0].(answer); ours {
				return
			}
		}
		config.Routes = append(config.Routes, caddyhttp.Route{Handlers: []caddyhttp.MiddlewareHandler{answer{}}})
	}
	if server != nil {
		add(server.Errors)
	}
	for _, module := range ctx.Modules() {
		if around, ok := module.(*caddyhttp.Subroute); ok {
			add(around.Errors)
		}
	}
	return delegates
}

// answer is the last error route: it answers refusals and nothing else.
type answer struct{}

// CaddyModule names the route in Caddy's traces. It is not registered: no configuration holds it.
func (answer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.penstock_answer", New: func() caddy.Module { return answer{} }}
}

// ServeHTTP writes the body of a refusal.
func (answer) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	err, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return next.ServeHTTP(w, r)
	}
	return writeProblem(w, refusal.Status, refusal.body)
}

var _ caddyhttp.MiddlewareHandler = answer{}
