// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/core/response"
)

// Denial is the error that a [caddyhttp.HandlerError] wraps if a request is denied and error routes
// may answer it.
type Denial struct {
	Status int    // 429, 403, 401, 414, 431 or 503, or the status that the rule sets
	Rule   string // the rule that denied the request; "" if clients must not see its name
	answer answer
}

// Error names the status and the rule.
func (r *Denial) Error() string {
	if r.Rule == "" {
		return http.StatusText(r.Status)
	}
	return fmt.Sprintf("%s: rule %q", http.StatusText(r.Status), r.Rule)
}

// delegateErrors reports whether error routes surround a handler. delegateErrors appends the answer
// handler to these routes. The answer handler answers denied requests that the routes leave
// unanswered, such as requests that another site denied, or all denied requests under handle_errors
// 404.
//
// Without error routes, a handler writes the response itself. Otherwise the server would send an
// empty response, and would prepare a log entry that costs more than the request. Caddy sets up
// error routes and named routes last, so a handler within one of them adds nothing. If a named
// route denies a request and the error routes do not answer it, the response has only a status.
func delegateErrors(ctx caddy.Context, server *caddyhttp.Server) bool {
	delegates := server != nil && addAnswer(server.Errors, server.Routes)
	for _, module := range ctx.Modules() {
		if around, ok := module.(*caddyhttp.Subroute); ok {
			delegates = addAnswer(around.Errors, around.Routes) || delegates
		}
	}
	return delegates
}

// addAnswer inserts the handlers that error routes need, and reports whether there are error
// routes. The answer handler goes at the end of the last route and of each terminal route, such as
// the routes of a site. The handler that merges fields goes first.
//
// addAnswer changes nothing after the normal routes have been set up, because Caddy then sets up
// the error routes. A list that grows during that step would lose its remaining routes.
func addAnswer(config *caddyhttp.HTTPErrorConfig, routes caddyhttp.RouteList) bool {
	if config == nil || len(config.Routes) == 0 {
		return false
	}
	if !slices.ContainsFunc(routes, isProvisioning) {
		return true
	}
	for i := range config.Routes {
		route := &config.Routes[i]
		if route.Terminal && !endsWithResponse(route) {
			route.HandlersRaw = append(route.HandlersRaw, answerJSON)
		}
	}
	if !endsWithResponse(&config.Routes[len(config.Routes)-1]) || config.Routes[len(config.Routes)-1].MatcherSetsRaw != nil {
		config.Routes = append(config.Routes, caddyhttp.Route{HandlersRaw: []json.RawMessage{answerJSON}})
	}
	if first := config.Routes[0].HandlersRaw; len(first) != 1 || string(first[0]) != string(mergeJSON) {
		config.Routes = slices.Insert(config.Routes, 0, caddyhttp.Route{HandlersRaw: []json.RawMessage{mergeJSON}})
	}
	return true
}

// isProvisioning reports whether Caddy still has to create the handlers of a route.
func isProvisioning(route caddyhttp.Route) bool {
	return len(route.HandlersRaw) > 0 && len(route.Handlers) == 0
}

var (
	answerJSON = json.RawMessage(`{"handler":"penstock_answer"}`)
	mergeJSON  = json.RawMessage(`{"handler":"penstock_answer","merge":true}`)
)

func endsWithResponse(route *caddyhttp.Route) bool {
	n := len(route.HandlersRaw)
	return n > 0 && string(route.HandlersRaw[n-1]) == string(answerJSON)
}

func init() { caddy.RegisterModule(Answer{}) }

// Answer is the last handler of error routes. The handler answers requests that a `penstock`
// handler denied and no error route answered, and passes others on. The `penstock` handlers add it
// automatically.
type Answer struct {
	// Whether this is the first handler of error routes instead of the last. The first handler
	// merges the rate limit fields with the fields that error routes add, such as the fields of an
	// upstream that serves the error page.
	Merge bool `json:"merge,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Answer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.penstock_answer", New: func() caddy.Module { return new(Answer) }}
}

// ServeHTTP answers a request that was denied, and passes on any other. If Merge is set, ServeHTTP
// passes on every request, and merges the rate limit fields: see mergeFields.
func (a Answer) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if a.Merge {
		return mergeFields(w, r, next)
	}
	err, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
	var denial *Denial
	if !errors.As(err, &denial) {
		return next.ServeHTTP(w, r)
	}
	denial.answer.write(w, r)
	return nil
}

// mergeFields removes from the header the rate limit fields that were set before the error. They
// are merged back when the error response is written.
func mergeFields(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	rec, ok := varsOf(r)[recordVar].(*record)
	if !ok {
		return next.ServeHTTP(w, r)
	}
	own := rec.responder(w)
	take := func(name string) string {
		value := w.Header().Get(name)
		w.Header().Del(name)
		return value
	}
	fields := response.Fields{response.FieldLimit: take(fieldLimit), response.FieldRemaining: take(fieldRemaining),
		response.FieldReset: take(fieldReset), response.FieldRateLimit: take(fieldRateLimit),
		response.FieldPolicy: take(fieldPolicy), response.FieldCost: take(fieldCost)}
	if rec.deniedBy != nil {
		fields[response.FieldRetryAfter] = take(fieldRetryAfter)
		rec.deniedBy = own
	}
	remaining, _ := strconv.ParseInt(fields[response.FieldRemaining], 10, 64)
	own.setFields(fields, remaining)
	err := next.ServeHTTP(own, r)
	own.applyFields()
	return err
}

var _ caddyhttp.MiddlewareHandler = Answer{}
