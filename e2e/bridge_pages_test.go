// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/freeport"
)

// TestNoReboundPageAsks tests DNS rebinding. After the attacker's page has loaded, its host name
// resolves to this machine, and the page sends requests to the bridge as if to its own server. Only
// the Host field reveals the attack.
func TestNoReboundPageAsks(t *testing.T) {
	t.Parallel()
	listen := freeport.Address(t)
	b := newBridge(t, "name: shop\nrules: [{name: all, per: [], limit: 5/31d}]\n", "--listen", listen, "--host", "bridge.shop.example")
	b.runAt(t, "tcp", listen)
	asks := func(host, method, path, body string) int {
		t.Helper()
		request, err := http.NewRequest(method, "http://"+listen+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Host = host
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	answered := 0
	for range 10 {
		for path, method := range map[string]string{"/v1/policy": "GET", "/metrics": "GET", "/readyz": "GET", "/v1/check": "POST"} {
			if status := asks("evil.example:8441", method, path, `{"path":"/","ip":"192.0.2.7"}`); status != http.StatusMisdirectedRequest {
				answered++
			}
		}
	}
	t.Logf("%d of 40 calls of a rebound page are answered", answered)
	if answered != 0 {
		t.Errorf("%d are answered", answered)
	}
	for _, host := range []string{listen, "localhost:8441", "penstock", "bridge.shop.example"} {
		if status := asks(host, "POST", "/v1/check", `{"path":"/","ip":"192.0.2.7"}`); status != http.StatusOK {
			t.Errorf("by %s: status %d", host, status)
		}
	}
}
