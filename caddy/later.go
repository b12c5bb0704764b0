// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/http"
	"slices"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/internal/enforce/live"
)

// position is where a request is in the routes of a server after a penstock handler, if there is
// nothing in between but matchers. A position is either a penstock handler or a route. A nil
// position means that a handler of another kind comes next, or that no handler does.
type position struct {
	handler *Handler // nil if the position is a route

	matchers caddyhttp.MatcherSets
	group    string    // of routes in a group, a request takes only the first that matches
	taken    *position // what comes next in the route

	next *position // what comes after the handler, or instead of the route
}

// linkLater sets what comes next after each handler of a server. All handlers of the server must
// have been provisioned.
func linkLater(server *caddyhttp.Server) {
	linkApart(server.Routes, server.Errors)
	for _, named := range server.NamedRoutes {
		linkRoutes(caddyhttp.RouteList{*named}, nil)
	}
}

// linkApart sets what comes next after each handler in routes that have their own error routes, and
// in the error routes. The error routes answer exactly what the handlers inside deny. So no handler
// outside of the routes is linked with one inside.
func linkApart(routes caddyhttp.RouteList, onError *caddyhttp.HTTPErrorConfig) {
	linkRoutes(routes, nil)
	if onError != nil {
		linkRoutes(onError.Routes, nil)
	}
}

// linkRoutes sets what comes next after each handler in the routes. The argument named after is the
// position that comes after the last route. linkRoutes returns the first position of the routes.
func linkRoutes(routes caddyhttp.RouteList, after *position) *position {
	at := after
	for i := range slices.Backward(routes) {
		route := &routes[i]
		inside := at
		if route.Terminal {
			inside = nil
		}
		for _, handler := range slices.Backward(route.Handlers) {
			switch h := handler.(type) {
			case *Handler:
				h.later = inside
				inside = &position{handler: h, next: inside}
			case *caddyhttp.Subroute:
				if h.Errors == nil {
					inside = linkRoutes(h.Routes, inside)
				} else {
					linkApart(h.Routes, h.Errors)
					inside = nil
				}
			default:
				inside = nil
			}
		}
		switch {
		case len(route.MatcherSets) == 0 && route.Group == "":
			at = inside
		case inside != nil || at != nil:
			at = &position{matchers: route.MatcherSets, group: route.Group, taken: inside, next: at}
		}
	}
	return at
}

// linkOf returns a function that calls linkLater for the server once.
func (a *App) linkOf(server *caddyhttp.Server) func() {
	if a.links[server] == nil {
		if a.links == nil {
			a.links = make(map[*caddyhttp.Server]func())
		}
		a.links[server] = sync.OnceFunc(func() { linkLater(server) })
	}
	return a.links[server]
}

// addLater adds to the plan the policies of the handlers to which the request comes next after h,
// so that all of them are decided in one step. addLater leaves the remaining handlers to decide by
// themselves if what comes next depends on the decision. If the plan needs more checks than one
// call of the store accepts, the request is denied and not charged, as under a single policy. A
// client chooses how many checks its request needs, so the step must not become two steps because
// of it.
func (s *scratchSpace) addLater(h *Handler, rec *record, r *http.Request) {
	if h.link == nil {
		return
	}
	h.link()
	if h.later == nil {
		return
	}
	rec.unread = true
	defer func() { rec.unread = false }()
	satisfied, _ := r.Context().Value(caddy.CtxKey("route_group")).(map[string]struct{})
	var room [4]string
	groups := room[:0] // the groups of the routes taken here
	for at := h.later; at != nil; {
		_, left := satisfied[at.group]
		switch {
		case at.handler != nil:
			if !s.addHandler(at.handler, rec) {
				return
			}
			at = at.next
		case at.group != "" && satisfied == nil:
			return
		case left || slices.Contains(groups, at.group):
			at = at.next
		default:
			matches, err := at.matchers.AnyMatchWithError(r)
			if err != nil || !rec.unread {
				return
			}
			if !matches {
				at = at.next
				continue
			}
			if at.group != "" {
				groups = append(groups, at.group)
			}
			at = at.taken
		}
	}
}

// addHandler adds the policies of a later handler to the plan. If they must be decided separately,
// addHandler leaves the plan as it was, and returns false.
func (s *scratchSpace) addHandler(h *Handler, rec *record) bool {
	begun, versions := len(rec.done), len(s.versions)
	s.addPolicies(h.policies, rec)
	if rec.unread {
		s.later = append(s.later, h)
		return true
	}
	rec.done, s.versions = rec.done[:begun], s.versions[:versions]
	s.plan.Retry()
	s.addTo(&s.plan)
	return false
}

// addPolicies adds the policies to the plan, except those that have already charged the request.
func (s *scratchSpace) addPolicies(policies []*live.Policy, rec *record) {
	for _, p := range policies {
		if rec.begin(p) {
			s.versions = append(s.versions, p.Current().Add(&s.plan, &s.attrs))
		}
	}
}
