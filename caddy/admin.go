// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/operator"
)

func init() { caddy.RegisterModule(Admin{}) }

// Admin serves an operator's requests about running limits at Caddy's admin endpoint:
//
//	GET  /penstock/rules     the policies and rules in force
//	GET  /penstock/client    a client's counters and penalty, charging nothing (client=user:u_42)
//	POST /penstock/reset     forget a client's counters
//	POST /penstock/lift      lift a client's penalty
//	GET  /penstock/top       the rules and clients with most denials on all nodes, approximately
//	                         (n=20)
//	GET  /penstock/nodes     the nodes that count in the same Redis
//	GET  /penstock/events    the latest events of all nodes
//	                         (client=user:u_42, rule=api, after=PLACE)
//	GET  /penstock/record    a client's record in the directory, and its latest changes
//	GET  /penstock/records   a page of all clients that have a record
//	                         (kind=user, blocked=true, n=100, after=PLACE)
//	POST /penstock/edit      change a client's record
//	POST /penstock/import    write records of clients and API keys that were exported
//	GET  /penstock/keys      the API keys of a name in the directory, or a page of all
//	                         (name=acme, after=NAME)
//	POST /penstock/key       create, rotate or revoke API keys in the directory
//	POST /penstock/reload    read the policy files again
//
// Anyone with access to the admin endpoint can see client identifiers and reset limits. By default,
// Caddy binds the endpoint to loopback only.
type Admin struct{}

// CaddyModule returns the Caddy module information.
func (Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.penstock", New: func() caddy.Module { return new(Admin) }}
}

// Provision registers the metrics with the admin endpoint of a configuration. If Caddy rejects a
// configuration, the previous one continues to run, but Caddy serves the registry of the rejected
// one. The app might have failed before it registered the metrics there.
func (*Admin) Provision(ctx caddy.Context) error { return registerMetrics(ctx.GetMetricsRegistry()) }

// Routes returns the endpoints.
func (Admin) Routes() []caddy.AdminRoute {
	var out []caddy.AdminRoute
	for _, route := range operator.Routes() {
		out = append(out, caddy.AdminRoute{Pattern: operator.Prefix + route.Name, Handler: caddy.AdminHandlerFunc(
			func(w http.ResponseWriter, r *http.Request) error {
				app, err := runningApp()
				if err != nil {
					return err
				}
				app.operatorsAPI().ServeHTTP(w, r)
				return nil
			})})
	}
	return out
}

// operatorsAPI returns the API that answers operators about this configuration.
func (a *App) operatorsAPI() *operator.API {
	return &operator.API{Desk: a.operatorsView(), Front: "Caddy", DirectoryRemedy: "write directory in the penstock block of the global options",
		Reload: a.reload, Node: thisNode, Others: a.store.otherNodes(), Follow: a.store.followNodes()}
}

// operatorsView returns the operators' view of this configuration.
func (a *App) operatorsView() *operator.Desk {
	return &operator.Desk{Store: a.store, Directory: a.store.directory, Denials: eventLog.Recent, Policies: a.operatedPolicies}
}

// operatedPolicies returns the policies in force, in the form that the operators' API needs.
func (a *App) operatedPolicies() (all []operator.Policy) {
	for _, p := range a.inForce() {
		now := p.Current()
		all = append(all, operator.Policy{Ruleset: now.Ruleset, Document: now.Document, Verifiers: now.Verifiers(),
			Place: p.place, File: p.file, Rejected: p.Err() != nil, Candidate: operator.CandidateOf(now)})
	}
	return all
}

func apiError(status int, err error) error { return caddy.APIError{HTTPStatus: status, Err: err} }

// runningApp returns the app of the running configuration.
func runningApp() (*App, error) {
	ctx := caddy.ActiveContext()
	if ctx.Context == nil {
		return nil, apiError(http.StatusServiceUnavailable, errors.New("no configuration is running"))
	}
	app, err := ctx.AppIfConfigured("penstock")
	if err != nil {
		return nil, apiError(http.StatusNotFound, errors.New("the running configuration has no penstock"))
	}
	return app.(*App), nil
}

// inForce returns all policies of the configuration, candidates included, sorted by name and place.
func (a *App) inForce() []*placedPolicy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(maps.Values(a.policiesByText), func(x, y *placedPolicy) int {
		return cmp.Or(strings.Compare(x.Current().Document.Name, y.Current().Document.Name),
			strings.Compare(x.place, y.place), strings.Compare(x.file, y.file))
	})
}

var (
	_ caddy.AdminRouter = Admin{}
	_ caddy.Provisioner = (*Admin)(nil)
)
