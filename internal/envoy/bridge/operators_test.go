// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/operator"
)

const (
	filterToken = "0123456789abcdef"
	adminToken  = "fedcba9876543210"
)

// sendRequest sends a request with a token, or without a token if it is "".
func sendRequest(handler http.Handler, method, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w
}

// TestOperatorsNeedTheirToken: the filters' token does not open the operators' routes, and the
// operators' token does not open the filters' routes. Without a token of operators, their routes
// are served only on their own listener.
func TestOperatorsNeedTheirToken(t *testing.T) {
	both := open(t, shop, func(o *Options) { o.Token, o.AdminToken = filterToken, adminToken })
	filters := open(t, shop, func(o *Options) { o.Token = filterToken })
	bare := open(t, shop, nil)
	for _, c := range []struct {
		name   string
		on     http.Handler
		token  string
		status int
	}{
		{"with both tokens, that of operators", both.b.Handler(), adminToken, 200},
		{"with both tokens, that of filters", both.b.Handler(), filterToken, 401},
		{"with both tokens, none", both.b.Handler(), "", 401},
		{"at their own listener, their token", both.b.AdminHandler(), adminToken, 200},
		{"at their own listener, that of filters", both.b.AdminHandler(), filterToken, 401},
		{"at their own listener, none", both.b.AdminHandler(), "", 401},
		{"without theirs, that of filters", filters.b.Handler(), filterToken, 404},
		{"without theirs, none", filters.b.Handler(), "", 401},
		{"without any token", bare.b.Handler(), "", 404},
		{"at their own listener without any token", bare.b.AdminHandler(), "", 200},
	} {
		for _, route := range operator.Routes() {
			path := operator.Prefix + route.Name
			w := sendRequest(c.on, route.Method, path, c.token)
			// If the route is reached, its own answer is returned, such as 400 for a missing
			// parameter.
			reached := w.Code != 401 && !strings.Contains(w.Body.String(), "operators are not served here")
			if reached != (c.status == 200) || !reached && w.Code != c.status {
				t.Errorf("%s: %s: %d %s, want %d", c.name, path, w.Code, w.Body, c.status)
			}
		}
	}
	for _, path := range []string{"/v1/policy", "/metrics"} {
		if w := sendRequest(both.b.Handler(), "GET", path, adminToken); w.Code != 401 {
			t.Errorf("%s with the token of operators: %d", path, w.Code)
		}
		if w := sendRequest(both.b.AdminHandler(), "GET", path, adminToken); w.Code != 404 {
			t.Errorf("%s at the listener of operators: %d", path, w.Code)
		}
	}
}

// TestOperatorsSeeAndResetWhatTheBridgeCharges: the routes show the charges that filters caused,
// and the clients that were denied.
func TestOperatorsSeeAndResetWhatTheBridgeCharges(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		for range 3 {
			h.ask(h.question("/api/x", "192.0.2.7"))
		}
		tell := func(method, path string) string {
			w := sendRequest(h.b.AdminHandler(), method, operator.Prefix+path, "")
			if w.Code != 200 {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
			return w.Body.String()
		}
		var report operator.Report
		if err := json.Unmarshal([]byte(tell("GET", "client?client=ip:192.0.2.7&rule=api")), &report); err != nil || len(report.Counters) != 1 ||
			report.Counters[0].Remaining != 0 {
			t.Errorf("%+v, %v", report, err)
		}
		if top := tell("GET", "top"); !strings.Contains(top, `{"policy":"shop","client":"ip:192.0.2.7","refused":1,"over":0}`) {
			t.Errorf("top: %s", top)
		}
		tell("POST", "reset?client=ip:192.0.2.7")
		if used := h.readUsed("/api/x", "192.0.2.7"); used != 0 {
			t.Errorf("after a reset, %d are used", used)
		}
		if rules := tell("POST", "reload"); !strings.Contains(rules, fmt.Sprintf(`"version":%q`, h.b.policy.Current().ID)) {
			t.Errorf("reload: %s", rules)
		}
	})
}

// TestNoPageInABrowserOperates: the listener of operators rejects browser pages. Over TCP without a
// token, it also rejects unknown host names.
func TestNoPageInABrowserOperates(t *testing.T) {
	for _, token := range []string{"", adminToken} {
		h := open(t, shop, func(o *Options) { o.AdminToken = token })
		server := httptest.NewServer(h.b.AdminHandler())
		defer server.Close()
		for _, route := range operator.Routes() {
			for _, c := range []struct {
				field, value string
				status       int
			}{{"Origin", "https://evil.example", 403}, {"Sec-Fetch-Site", "same-origin", 403}, {"Host", "evil.example", 421}} {
				r, err := http.NewRequest(route.Method, server.URL+operator.Prefix+route.Name, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+token)
				if c.field == "Host" {
					if token != "" {
						continue
					}
					r.Host = c.value
				} else {
					r.Header.Set(c.field, c.value)
				}
				w, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				w.Body.Close()
				if w.StatusCode != c.status {
					t.Errorf("%s with %s: %s: %d, want %d", route.Name, c.field, c.value, w.StatusCode, c.status)
				}
			}
		}
	}
}
