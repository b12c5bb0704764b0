// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/fleet"
)

// Prefix is the prefix of the path of each route.
const Prefix = "/penstock/"

// Bounds of requests and answers.
const (
	// BodyBytesMax bounds the body of a request.
	BodyBytesMax = 64 << 10
	// queryBytesMax bounds the query of a request.
	queryBytesMax = 16 << 10
)

// API answers an operator's requests about a process, with the same routes and answers in every
// front. An API is safe for concurrent use.
type API struct {
	Desk *Desk
	// Front is the name of the process in messages, such as "Caddy".
	Front string
	// DirectoryRemedy is the part of an error message that explains how to configure a directory of
	// clients.
	DirectoryRemedy string
	// Reload reads the policy files again. Nil means that nothing can be reloaded.
	Reload func() error
	// Node describes the process. Nil means that the process does not serve requests.
	Node *fleet.Node
	// Others reads the reports of all nodes of the same Redis. Nil means that there is no Redis.
	Others func(context.Context) (*fleet.Reading, error)
	// Follow returns the events of all nodes of the same Redis. Nil means that there is no Redis.
	Follow fleet.FollowFunc
}

// Route is one request that an API answers.
type Route struct {
	Method, Name string
	answer       func(*API, *request) (any, error)
}

// request is a request to a route.
type request struct {
	ctx   context.Context
	route *Route
	query url.Values
	body  io.Reader
}

// Routes returns all routes. Each route is at [Prefix] and its name.
func Routes() []Route { return slices.Clone(routes) }

var routes = []Route{
	{http.MethodGet, "rules", (*API).listRules},
	{http.MethodGet, "client", onClient((*Desk).Look)},
	{http.MethodPost, "reset", onClient((*Desk).Reset)},
	{http.MethodPost, "lift", onClient((*Desk).Lift)},
	{http.MethodGet, "top", (*API).listTop},
	{http.MethodGet, "nodes", (*API).listNodes},
	{http.MethodGet, "events", (*API).listEvents},
	{http.MethodGet, "record", (*API).showRecord},
	{http.MethodGet, "records", (*API).listRecords},
	{http.MethodPost, "edit", (*API).editClient},
	{http.MethodPost, "import", (*API).importRecords},
	{http.MethodGet, "keys", (*API).showKeys},
	{http.MethodPost, "key", (*API).editKeys},
	{http.MethodPost, "reload", (*API).reload},
}

// StatusError is an error with its HTTP status.
type StatusError struct {
	Status int
	// Reason is for programs; "" if the status suffices.
	Reason string
	Allow  string // the method that the route needs, if the request has another method
	Err    error
}

func (e *StatusError) Error() string { return e.Err.Error() }
func (e *StatusError) Unwrap() error { return e.Err }

// Answer answers a request to the route with the given name. [json.Marshal] can encode the result.
func (a *API) Answer(ctx context.Context, method, name string, rawQuery string, body io.Reader) (any, *StatusError) {
	at := slices.IndexFunc(routes, func(r Route) bool { return r.Name == name })
	if at < 0 {
		return nil, &StatusError{Status: http.StatusNotFound, Err: fmt.Errorf("there is no route %s; the routes are %q",
			Prefix+shorten(name), names())}
	}
	route := &routes[at]
	if method != route.Method {
		return nil, &StatusError{Status: http.StatusMethodNotAllowed, Allow: route.Method, Err: fmt.Errorf("%s needs the method %s", Prefix+name, route.Method)}
	}
	query, err := readQuery(rawQuery)
	if err == nil {
		var answer any
		if answer, err = route.answer(a, &request{ctx: ctx, route: route, query: query, body: io.LimitReader(body, BodyBytesMax+1)}); err == nil {
			return answer, nil
		}
	}
	return nil, a.statusOf(err)
}

// names returns the names of all routes.
func names() (all []string) {
	for i := range routes {
		all = append(all, routes[i].Name)
	}
	return all
}

// shorten returns the beginning of a text from the network, for messages.
func shorten(text string) string {
	const most = 64
	return text[:min(len(text), most)]
}

// API.statusOf converts an error to one that has the HTTP status of the answer.
func (a *API) statusOf(err error) *StatusError {
	var known *StatusError
	status, reason := http.StatusServiceUnavailable, ""
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, ErrNobody), errors.Is(err, directory.ErrNoKey):
		status, reason = http.StatusNotFound, ReasonNobody
	case errors.Is(err, ErrNoDirectory):
		status, err = http.StatusNotFound, fmt.Errorf("this %s has %w; %s", a.Front, err, a.DirectoryRemedy)
	case errors.Is(err, directory.ErrEdit):
		status = http.StatusUnprocessableEntity
	case errors.Is(err, ErrUnknown):
		status = http.StatusNotFound
	case errors.Is(err, ErrSelection), errors.Is(err, directory.ErrPlace), errors.Is(err, fleet.ErrAfter):
		status = http.StatusBadRequest
	}
	return &StatusError{Status: status, Reason: reason, Err: err}
}

// ServeHTTP answers a request to [Prefix] and the name of a route, always with JSON.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Prefix)
	answer, wrong := a.Answer(r.Context(), r.Method, name, r.URL.RawQuery, r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if wrong != nil {
		WriteError(w, wrong)
		return
	}
	_ = json.NewEncoder(w).Encode(answer) // the caller may have left
}

// WriteError writes an error as JSON with its status.
func WriteError(w http.ResponseWriter, wrong *StatusError) {
	if wrong.Allow != "" {
		w.Header().Set("Allow", wrong.Allow)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(wrong.Status)
	_ = json.NewEncoder(w).Encode(struct {
		Error  string `json:"error"`
		Reason string `json:"reason,omitempty"`
	}{wrong.Error(), wrong.Reason})
}

func badRequest(err error) error { return &StatusError{Status: http.StatusBadRequest, Err: err} }
