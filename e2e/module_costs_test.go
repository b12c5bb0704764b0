// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// moduleMeteredPolicy has the same rules as meteredCaddyfile.
const moduleMeteredPolicy = `name: meter
on_error: deny
rules:
  - {name: tokens, match: {path: /tokens/**}, limit: 1000000/31d fixed_window, cost_after: {json: usage.total_tokens, estimate: 100, default: 700, max: 50000}}
  - {name: kept, match: {path: /kept/**}, limit: 1000000/31d fixed_window, cost_after: {json: usage.total_tokens, estimate: 10, max: 50000, unread: 30}}
  - {name: priced, match: {path: /priced/**}, limit: 1000000/31d fixed_window, cost_after: {header: X-Cost, estimate: 100, default: 700, max: 50000}}
`

// startMeteredModule runs an Envoy with the native module in front of an upstream with the given
// handler.
func startMeteredModule(t *testing.T, h http.Handler) *meteredSite {
	t.Helper()
	m := &meteredSite{redis: redistest.Start(t), upstream: httptest.NewServer(h)}
	t.Cleanup(m.upstream.Close)
	s := &site{filter: moduleFilter(moduleMeteredPolicy + inRedis(m.redis)), manager: "use_remote_address: true, xff_num_trusted_hops: 1"}
	e := startEnvoyIn(t, []string{modulePath(t)}, "", h, s)
	m.process = &process{server: e.server, address: s.address}
	return m
}

// TestModuleCostsOfResponses is [TestCostsOfResponses] for Envoy with the native module. Envoy does
// not compress responses, and does not change Accept-Encoding. A response that the upstream breaks
// off costs as much as a response that the client does not read to its end.
func TestModuleCostsOfResponses(t *testing.T) {
	t.Parallel()
	var cases []meteredCase
	mux := http.NewServeMux()
	for _, c := range meteredCases() {
		switch {
		case strings.HasPrefix(c.path, "/tokens/encoded/"):
			continue
		case c.path == "/tokens/narrowed" || c.path == "/tokens/brotli-only":
			c.charged = 50000
		case strings.HasSuffix(c.path, "broken-off"):
			c.charged = 50000
		case c.path == "/priced/dead":
			c.status, c.bytes = http.StatusServiceUnavailable, -1
		}
		mux.Handle(c.path, c.upstream)
		cases = append(cases, c)
	}
	m := startMeteredModule(t, mux)
	m.costAll(t, cases)
}
