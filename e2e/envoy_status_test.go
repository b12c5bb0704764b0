// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/test/redistest"
)

const statusPolicy = `name: shop
identify: [{api_key: {keys_file: KEYS}}, {header: {name: X-User, unverified: true}}, ip: {}]
trusted_proxies: [127.0.0.0/8]
rules:
  - {name: api, limit: 10/31d fixed_window, tiers: {gold: 20/31d fixed_window}}
  - {name: other, match: {path: /other}, limit: 1000/31d fixed_window}
`

// ownLimits is the answer in which a client sees its own limits.
type ownLimits struct {
	Client, Identity, Tier, Tenant string
	Limits                         []struct {
		Policy                  string
		Limit, Remaining, Reset int
	}
}

// TestEnvoyClientsSeeTheirLimits tests the route of the guide at which clients see their own
// limits. However a client is identified, it sees the limits that apply to its next request, and is
// not charged. An address that the client itself sends has no effect.
func TestEnvoyClientsSeeTheirLimits(t *testing.T) {
	t.Parallel()
	const key, token = "pk_of_the_test_of_own_limits", "0123456789abcdef0"
	hash, err := credential.HashKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keys := filepath.Join(t.TempDir(), "keys.toml")
	if err := os.WriteFile(keys, fmt.Appendf(nil, "[[keys]]\nid = \"acme\"\ntier = \"gold\"\nhash = %q\n", hash), 0o600); err != nil {
		t.Fatal(err)
	}
	route := guideBlock(t, "- match: { path: /limits }")
	toBridge := strings.Replace(route, `"cluster":"penstock"`, `"cluster":"BRIDGE"`, 1) + ","
	guarded := strings.Replace(toBridge, `"request_headers_to_add":[`,
		`"request_headers_to_add":[{"header":{"key":"x-penstock-token","value":"`+token+`"},"append_action":"OVERWRITE_IF_EXISTS_OR_ADD"},`, 1)
	if guarded == toBridge || toBridge == route+"," {
		t.Fatalf("the guide's route has another form: %s", route)
	}
	sites := []*site{{set: longDeadline, routes: toBridge}, {set: longDeadline + "\ntoken: " + token, routes: guarded}}
	useEnvoy(t, nil, sites...)
	for i, s := range sites {
		args := []string{"--redis", redistest.Start(t).URL(), "--redis-timeout", "5s"}
		if i == 1 {
			args = append(args, "--token", token)
		}
		s.startBridge(t, strings.ReplaceAll(statusPolicy, "KEYS", keys), args...)
		for _, c := range []struct {
			client string // "IDENTITY:CLIENT TIER"
			limit  int
			fields []string
		}{
			{"api_key:acme gold", 20, []string{"X-API-Key", key}},
			{"header.x-user:ann ", 10, []string{"X-User", "ann"}},
			{"ip:127.0.0.1 ", 10, nil},
			{"ip:203.0.113.5 ", 10, []string{"X-Forwarded-For", "198.51.100.1, 203.0.113.5"}},
			{"ip:2001:db8::/64 ", 10, []string{"X-Forwarded-For", "2001:db8::1"}},
		} {
			s.checkReadLimits(t, c.client, c.limit, c.fields)
		}
	}
	a := sites[1].get(t, "/limits", "X-Penstock-Token", "another-token-of-16")
	if a.status != 200 || sites[0].get(t, "/limits", "Origin", "https://shop.example", "Sec-Fetch-Site", "same-origin").status != 200 {
		t.Errorf("a token of the client's own, and a page in a browser: %d", a.status)
	}
}

// checkReadLimits compares the limits that a client sees with those that its next requests report.
func (s *site) checkReadLimits(t *testing.T, client string, limit int, fields []string) {
	t.Helper()
	look := func(more ...string) (own ownLimits) {
		a := s.get(t, "/limits", append(more, fields...)...)
		if err := json.Unmarshal([]byte(a.body), &own); err != nil || a.status != 200 || a.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%s: %d %s %v", client, a.status, a.body, err)
		}
		return own
	}
	for n := range 3 {
		own := look("X-Penstock-Peer", "10.9.9.9:1")
		if got := own.Identity + ":" + own.Client + " " + own.Tier; got != client || len(own.Limits) != 2 || own.Limits[0].Limit != limit ||
			own.Limits[0].Remaining != limit-n {
			t.Fatalf("%s sees %+v, want %d of %d", client, own, limit-n, limit)
		}
		a := s.get(t, "/api", fields...)
		left, _ := strconv.Atoi(a.header.Get("X-RateLimit-Remaining"))
		if a.status != 200 || left != limit-n-1 {
			t.Errorf("%s: a request finds %d left, %d", client, left, a.status)
		}
	}
}
