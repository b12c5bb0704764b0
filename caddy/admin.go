// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/internal/policy"
)

func init() { caddy.RegisterModule(Admin{}) }

// Admin answers, at Caddy's admin endpoint, what an operator asks about the running limits:
//
//	GET  /penstock/rules     the policies and rules in force
//	GET  /penstock/client    a client's counters and penalty, without spending anything (client=user:u_42)
//	POST /penstock/reset     forget a client's counters
//	POST /penstock/lift      lift a client's penalty
//	GET  /penstock/top       the clients refused most, about (n=20)
//	POST /penstock/reload    read the policy files again
//
// Whoever reaches the admin endpoint can read who the clients are and give them their limits back: Caddy listens on
// loopback only unless it is told otherwise.
type Admin struct{}

// CaddyModule returns the Caddy module information.
func (Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.penstock", New: func() caddy.Module { return new(Admin) }}
}

// Routes returns the endpoints.
func (Admin) Routes() []caddy.AdminRoute {
	routes := []struct {
		method, path string
		answer       func(*App, *http.Request) (any, error)
	}{
		{http.MethodGet, "rules", (*App).tellRules},
		{http.MethodGet, "client", (*App).tellClient},
		{http.MethodPost, "reset", (*App).resetClient},
		{http.MethodPost, "lift", (*App).liftPenalty},
		{http.MethodGet, "top", (*App).tellTop},
		{http.MethodPost, "reload", (*App).tellReload},
	}
	var out []caddy.AdminRoute
	for _, route := range routes {
		out = append(out, caddy.AdminRoute{Pattern: "/penstock/" + route.path, Handler: caddy.AdminHandlerFunc(
			func(w http.ResponseWriter, r *http.Request) error {
				if r.Method != route.method {
					w.Header().Set("Allow", route.method)
					return refusal(http.StatusMethodNotAllowed, fmt.Errorf("%s is asked with %s", r.URL.Path, route.method))
				}
				app, err := runningApp()
				if err != nil {
					return err
				}
				answer, err := route.answer(app, r)
				if err != nil {
					return err
				}
				return writeJSON(w, answer)
			})})
	}
	return out
}

func refusal(status int, err error) error { return caddy.APIError{HTTPStatus: status, Err: err} }

// runningApp is the app of the configuration that runs.
func runningApp() (*App, error) {
	ctx := caddy.ActiveContext()
	if ctx.Context == nil {
		return nil, refusal(http.StatusServiceUnavailable, errors.New("no configuration is running"))
	}
	app, err := ctx.AppIfConfigured("penstock")
	if err != nil {
		return nil, refusal(http.StatusNotFound, errors.New("the running configuration has no penstock"))
	}
	return app.(*App), nil
}

func writeJSON(w http.ResponseWriter, answer any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(answer)
}

// policyInForce is what the endpoint tells of a policy.
type policyInForce struct {
	Name    string           `json:"name"`
	Version string           `json:"version"`
	Place   string           `json:"place"`
	File    string           `json:"file,omitempty"`
	Policy  *policy.Document `json:"policy"`
}

// inForce is a policy with where it was written.
type inForce struct {
	edition     *enforced
	place, file string
}

// inForce returns every policy of the configuration, candidates included, by namespace and place.
func (a *App) inForce() []inForce {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []inForce
	for key, e := range a.compiled {
		place, _, _ := strings.Cut(key, "\x00")
		one := inForce{edition: e, place: place}
		for _, f := range a.files {
			if f.enforced == e {
				one.file = f.path
			}
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(x, y inForce) int {
		return cmp.Or(strings.Compare(x.edition.current.Load().document.Name, y.edition.current.Load().document.Name),
			strings.Compare(x.place, y.place))
	})
	return all
}

func (a *App) tellRules(*http.Request) (any, error) {
	told := []policyInForce{}
	for _, e := range a.inForce() {
		d := e.edition.current.Load().document
		told = append(told, policyInForce{Name: d.Name, Version: d.Version(), Place: e.place, File: e.file, Policy: withoutSecrets(d)})
	}
	return map[string]any{"policies": told}, nil
}

// withoutSecrets returns the policy to be shown: secrets that stand in it are left out.
func withoutSecrets(d *policy.Document) *policy.Document {
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
		if from, err := url.Parse(hidden.JWKSURL); err == nil && from.User != nil { // another may be {env.NAME}
			hidden.JWKSURL = from.Redacted()
		}
		shown.Identify[i].JWT = &hidden
	}
	return &shown
}

func (a *App) tellReload(*http.Request) (any, error) {
	if err := a.reload(); err != nil {
		return nil, refusal(http.StatusUnprocessableEntity, err)
	}
	return a.tellRules(nil)
}

var _ caddy.AdminRouter = Admin{}
