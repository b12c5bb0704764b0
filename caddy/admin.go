// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/policyfile"
)

func init() { caddy.RegisterModule(Admin{}) }

// Admin serves an operator's requests about running limits at Caddy's admin endpoint:
//
//	GET  /penstock/rules     the policies and rules in force
//	GET  /penstock/client    a client's counters and penalty, charging nothing (client=user:u_42)
//	POST /penstock/reset     forget a client's counters
//	POST /penstock/lift      lift a client's penalty
//	GET  /penstock/top       the clients denied most often, approximately (n=20)
//	GET  /penstock/record    a client's record in the directory, and its latest changes
//	POST /penstock/edit      change a client's record
//	GET  /penstock/keys      the API keys of a name in the directory, or a page of all (name=acme, after=NAME)
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

// Provision registers the metrics with the admin endpoint of a configuration. After a rejected
// configuration, Caddy serves the registry of that configuration, although the app of the previous
// one runs on, and the app of the rejected one may never have registered anything.
func (*Admin) Provision(ctx caddy.Context) error { return register(ctx.GetMetricsRegistry()) }

// Routes returns the endpoints.
func (Admin) Routes() []caddy.AdminRoute {
	routes := []struct {
		method, path string
		answer       func(*App, *http.Request) (any, error)
	}{
		{http.MethodGet, "rules", (*App).listRules},
		{http.MethodGet, "client", (*App).lookUpClient},
		{http.MethodPost, "reset", (*App).resetClient},
		{http.MethodPost, "lift", (*App).liftPenalty},
		{http.MethodGet, "top", (*App).listTop},
		{http.MethodGet, "record", (*App).showRecord},
		{http.MethodPost, "edit", (*App).editClient},
		{http.MethodGet, "keys", (*App).showKeys},
		{http.MethodPost, "key", (*App).editKeys},
		{http.MethodPost, "reload", (*App).reloadPolicies},
	}
	var out []caddy.AdminRoute
	for _, route := range routes {
		out = append(out, caddy.AdminRoute{Pattern: "/penstock/" + route.path, Handler: caddy.AdminHandlerFunc(
			func(w http.ResponseWriter, r *http.Request) error {
				if r.Method != route.method {
					w.Header().Set("Allow", route.method)
					return apiError(http.StatusMethodNotAllowed, fmt.Errorf("%s needs the method %s", r.URL.Path, route.method))
				}
				app, err := runningApp()
				if err != nil {
					return err
				}
				answer, err := route.answer(app, r)
				if errors.Is(err, operator.ErrNobody) || errors.Is(err, directory.ErrNoKey) {
					return writeJSON(w, http.StatusNotFound, map[string]string{"error": err.Error(), "reason": operator.ReasonNobody})
				}
				if err != nil {
					return err
				}
				return writeJSON(w, http.StatusOK, answer)
			})})
	}
	return out
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

func writeJSON(w http.ResponseWriter, status int, answer any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(answer)
}

// policyInForce describes a policy in a response of the endpoint.
type policyInForce struct {
	Name    string               `json:"name"`
	Version string               `json:"version"`
	Place   string               `json:"place"`
	File    string               `json:"file,omitempty"`
	Policy  *policyfile.Document `json:"policy"`
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

func (a *App) listRules(*http.Request) (any, error) {
	told := []policyInForce{}
	for _, p := range a.inForce() {
		d := p.Current().Document
		told = append(told, policyInForce{Name: d.Name, Version: d.Version(), Place: p.place, File: p.file, Policy: withoutSecrets(d)})
	}
	return map[string]any{"policies": told}, nil
}

// withoutSecrets returns a copy of the policy without its secrets, for display.
func withoutSecrets(d *policyfile.Document) *policyfile.Document {
	shown := *d
	shown.Identify = slices.Clone(d.Identify)
	for i := range shown.Identify {
		jwt := shown.Identify[i].JWT
		if jwt == nil {
			continue
		}
		hidden := *jwt
		if hidden.Secret != "" {
			hidden.Secret = "(secret)"
		}
		// {env.NAME} does not parse.
		if from, err := url.Parse(hidden.JWKSURL); err == nil && from.User != nil {
			hidden.JWKSURL = from.Redacted()
		}
		shown.Identify[i].JWT = &hidden
	}
	return &shown
}

func (a *App) reloadPolicies(*http.Request) (any, error) {
	if err := a.reload(); err != nil {
		return nil, apiError(http.StatusUnprocessableEntity, err)
	}
	return a.listRules(nil)
}

var (
	_ caddy.AdminRouter = Admin{}
	_ caddy.Provisioner = (*Admin)(nil)
)
