// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// routes lists all routes of the bridge.
var routes = []struct{ method, path, body string }{{"POST", "/v1/check", `{"path":"/api/x","ip":"192.0.2.7"}`}, {"GET", "/v1/policy", ""},
	{"GET", "/metrics", ""}, {"GET", "/healthz", ""}, {"GET", "/readyz", ""}}

// TestNoPageInABrowserAsks: a page can send text to any port of its user's machine. The browser
// names the page's origin, so the bridge can reject such requests.
func TestNoPageInABrowserAsks(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		for field, values := range map[string][]string{"Origin": {"https://evil.example", "null", "http://localhost:8441"},
			"Sec-Fetch-Site": {"cross-site", "same-site", "same-origin"}} {
			for _, value := range values {
				for _, route := range routes {
					r := httptest.NewRequest(route.method, route.path, strings.NewReader(route.body))
					r.Header.Set("Content-Type", "text/plain")
					r.Header.Set(field, value)
					w := httptest.NewRecorder()
					h.b.Handler().ServeHTTP(w, r)
					if used := h.readUsed("/api/x", "192.0.2.7"); w.Code != http.StatusForbidden || used != 0 {
						t.Errorf("%s with %s: %s: %d, %d used", route.path, field, value, w.Code, used)
					}
				}
			}
		}
	})
}

// TestUnknownHostsAreRejected: the bridge rejects calls whose Host is an unknown name. A web page
// may call the name that it was loaded from, and the owner of that name may make it resolve to the
// bridge's address.
func TestUnknownHostsAreRejected(t *testing.T) {
	said := new(eventually.Journal)
	for _, token := range []string{"", "0123456789abcdef"} {
		h := open(t, shop, func(o *Options) {
			o.Token, o.Hosts, o.Logger = token, []string{"bridge.shop.example"}, said.Logger()
		})
		server := httptest.NewServer(h.b.Handler())
		defer server.Close()
		for host, known := range map[string]bool{"127.0.0.1:8441": true, "[::1]:8441": true, "[::1]": true, "10.1.2.3": true, "localhost": true,
			"LOCALHOST:1": true, "localhost.:1": true, "a.localhost": true, "penstock": true, "penstock:8441": true, "Bridge.Shop.example": true,
			"bridge.shop.example:8441": true, "evil.example": false, "evil.example:8441": false, "127.0.0.1.evil.example": false,
			"localhost.evil.example": false, "penstock.evil.example": false, "evil.": false, "xlocalhost.example": false, "1.2.3.4.5": false,
			"bridge.shop.example.": false, "a:b:c": false} {
			for _, route := range routes {
				r, err := http.NewRequest(route.method, server.URL+route.path, strings.NewReader(route.body))
				if err != nil {
					t.Fatal(err)
				}
				r.Host = host
				if token != "" {
					r.Header.Set("Authorization", "Bearer "+token)
				}
				response, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				want := http.StatusOK
				if !known && token == "" {
					want = http.StatusMisdirectedRequest
				}
				if response.StatusCode != want {
					t.Errorf("token %q, %s by %s: %d, want %d", token, route.path, host, response.StatusCode, want)
				}
			}
		}
	}
	if n := strings.Count(said.String(), "start the bridge with --host"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, said)
	}
}
