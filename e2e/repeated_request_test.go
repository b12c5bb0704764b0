// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// repeatedCaddyfile has the rules of repeatedPolicy.
const repeatedCaddyfile = `{
	admin ADMIN
}
:SITE {
	penstock {
		policy {env.POLICY}
	}
	reverse_proxy {env.UPSTREAM}
}
`

// repeatedPolicy allows 5 requests to each path. Under the rule of /cost, a request whose cost is
// unknown is charged 50 of 250 units.
const repeatedPolicy = `name: repeated
rules:
  - {name: refunded, match: {path: /refunded}, limit: 5/31d, refund_on: {status: 5xx}}
  - {name: counted, match: {path: /counted}, limit: 5/31d, count_if: {status: [200, 401]}}
  - {name: cost, match: {path: /cost}, limit: 250/31d, cost_after: {header: X-Cost, estimate: 1, max: 50}}
`

// repeatedRoute makes Envoy repeat a lost request one time.
const repeatedRoute = `{match: {prefix: /}, route: {cluster: upstream, retry_policy: {retry_on: "reset,connect-failure", num_retries: 1}}}, `

// endingUpstream is a server that ends when it receives a request, as if the request had crashed
// it. Only requests to /warm are answered.
type endingUpstream struct {
	received atomic.Int64
	ended    chan string // its address
}

func (u *endingUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/warm" {
		_, _ = io.WriteString(w, "ok")
		return
	}
	u.received.Add(1)
	_ = r.Context().Value(http.ServerContextKey).(*http.Server).Close()
	u.ended <- r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
}

// TestRequestsThatEndTheirUpstreamCount tests a request that ends its upstream before the response.
// The proxy repeats the request, but cannot connect. The request counts nevertheless, because the
// upstream has received it.
func TestRequestsThatEndTheirUpstreamCount(t *testing.T) {
	t.Parallel()
	for front, start := range map[string]func(t *testing.T, u *endingUpstream) (address string){
		"caddy": func(t *testing.T, u *endingUpstream) string {
			policy := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
			policy.edit(repeatedPolicy)
			return startCaddy(t, repeatedCaddyfile, "POLICY="+policy.path, "UPSTREAM="+startUpstream(t, u)).address
		},
		"filter": func(t *testing.T, u *endingUpstream) string {
			s := &site{routes: repeatedRoute}
			useEnvoy(t, u, s)
			s.startBridge(t, repeatedPolicy)
			return s.address
		},
		"module": func(t *testing.T, u *endingUpstream) string {
			s := &site{filter: moduleFilter(repeatedPolicy), routes: repeatedRoute}
			startModuleSite(t, u, s)
			return s.address
		},
	} {
		t.Run(front, func(t *testing.T) {
			u := &endingUpstream{ended: make(chan string, 1)}
			to := "http://" + start(t, u)
			for _, path := range []string{"/refunded", "/counted", "/cost"} {
				if got := u.endBy(t, to, path); got != 5 {
					t.Errorf("%s: the upstream received %d requests, want 5", path, got)
				}
			}
		})
	}
}

// endBy sends 12 requests to a path. After each request that has ended the upstream, it starts the
// upstream again. It returns the number of requests that the upstream received.
func (u *endingUpstream) endBy(t *testing.T, to, path string) int64 {
	t.Helper()
	before := u.received.Load()
	for range 12 {
		// Afterwards the proxy has a connection to the upstream, and uses it for the next request.
		eventually.Until(t, patience, "the upstream answers", func() bool { return statusOf(t, to+"/warm") == http.StatusOK })
		status := statusOf(t, to+path)
		if status == http.StatusTooManyRequests {
			continue
		}
		if status != http.StatusBadGateway && status != http.StatusServiceUnavailable {
			t.Fatalf("%s: status %d of a request that ended the upstream", path, status)
		}
		serveAt(t, "tcp", <-u.ended, u)
	}
	return u.received.Load() - before
}

// statusOf sends a GET request and returns the status of the response.
func statusOf(t *testing.T, url string) int {
	t.Helper()
	r, err := asIs.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode
}
