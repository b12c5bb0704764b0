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

	"github.com/penstock/penstock/core"
)

// Refusal is the error within the [caddyhttp.HandlerError] of a refused request, where error routes may answer it.
type Refusal struct {
	Status int    // 429, 403, 401 or 503, or what the rule says
	Rule   string // the rule that refused; "" if its name is not for clients
	answer answer
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
// entry for each that costs more than the request. Error routes and named routes are set up after the others: a handler in
// one adds nothing, and error routes that leave a refusal of a named route unanswered answer with its status alone.
func delegateErrors(ctx caddy.Context, server *caddyhttp.Server) bool {
	delegates := server != nil && addAnswer(server.Errors, server.Routes)
	for _, module := range ctx.Modules() {
		if around, ok := module.(*caddyhttp.Subroute); ok {
			delegates = addAnswer(around.Errors, around.Routes) || delegates
		}
	}
	return delegates
}

// addAnswer adds the answer where error routes end: behind the last one, and in every one that is terminal, as those of
// a site are; and where they begin, what merges the fields. It reports whether there are error routes.
//
// It leaves them alone once the routes they belong to are set up, for then they are being set up themselves, and a list
// that grows under Caddy's hands loses the routes still to come.
func addAnswer(config *caddyhttp.HTTPErrorConfig, routes caddyhttp.RouteList) bool {
	if config == nil || len(config.Routes) == 0 {
		return false
	}
	if !slices.ContainsFunc(routes, beingSetUp) {
		return true
	}
	for i := range config.Routes {
		route := &config.Routes[i]
		if route.Terminal && !endsInAnswer(route) {
			route.HandlersRaw = append(route.HandlersRaw, answerJSON)
		}
	}
	if !endsInAnswer(&config.Routes[len(config.Routes)-1]) || config.Routes[len(config.Routes)-1].MatcherSetsRaw != nil {
		config.Routes = append(config.Routes, caddyhttp.Route{HandlersRaw: []json.RawMessage{answerJSON}})
	}
	if first := config.Routes[0].HandlersRaw; len(first) != 1 || string(first[0]) != string(mergeJSON) {
		config.Routes = slices.Insert(config.Routes, 0, caddyhttp.Route{HandlersRaw: []json.RawMessage{mergeJSON}})
	}
	return true
}

// beingSetUp reports whether a route's handlers are not all made yet.
func beingSetUp(route caddyhttp.Route) bool {
	return len(route.HandlersRaw) > 0 && len(route.Handlers) == 0
}

var (
	answerJSON = json.RawMessage(`{"handler":"penstock_answer"}`)
	mergeJSON  = json.RawMessage(`{"handler":"penstock_answer","merge":true}`)
)

func endsInAnswer(route *caddyhttp.Route) bool {
	n := len(route.HandlersRaw)
	return n > 0 && string(route.HandlersRaw[n-1]) == string(answerJSON)
}

func init() { caddy.RegisterModule(Answer{}) }

// Answer is the last handler of error routes: it answers requests that a `penstock` handler refused and no error route
// answered, and passes others on. Handlers add it where it is needed.
type Answer struct {
	// Whether it is the first handler instead, which merges the rate limit fields with those that error routes add, as
	// those of an upstream that makes the error page.
	Merge bool `json:"merge,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (Answer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.penstock_answer", New: func() caddy.Module { return new(Answer) }}
}

// ServeHTTP writes the body of a refusal.
func (a Answer) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if a.Merge {
		return mergeFields(w, r, next)
	}
	err, _ := r.Context().Value(caddyhttp.ErrorCtxKey).(error)
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return next.ServeHTTP(w, r)
	}
	refusal.answer.write(w, r)
	return nil
}

// mergeFields takes the fields that handlers have set before the error out of the header, and puts them back when the
// error's answer is written.
func mergeFields(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	vars, _ := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	rec, ok := vars[recordVar].(*record)
	if !ok {
		return next.ServeHTTP(w, r)
	}
	own := rec.responder(w)
	take := func(name string) string {
		value := w.Header().Get(name)
		w.Header().Del(name)
		return value
	}
	fields := core.Fields{Limit: take(fieldLimit), Remaining: take(fieldRemaining), Reset: take(fieldReset),
		RateLimit: take(fieldRateLimit), Policy: take(fieldPolicy), Cost: take(fieldCost)}
	if rec.refusedBy != nil {
		fields.RetryAfter = take(fieldRetryAfter)
		rec.refusedBy = own
	}
	remaining, _ := strconv.ParseInt(fields.Remaining, 10, 64)
	own.tell(fields, remaining)
	err := next.ServeHTTP(own, r)
	own.apply()
	return err
}

var _ caddyhttp.MiddlewareHandler = Answer{}
