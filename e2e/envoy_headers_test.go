// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/otlptest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// longestHeader is the value of a header field. It is nearly as long as the header that Envoy
// accepts by default, with some room for the other fields of a request.
var longestHeader = strings.Repeat("x", 58<<10)

// TestLongHeadersEndNoConnection tests long header fields that Envoy forwards to the bridge. The
// connection also carries the calls of other clients, so it must not be closed. A request for
// limits is forwarded with all fields of the client, and with its path twice. A call over gRPC has
// the tracestate of the client, which Envoy's tracer adds.
func TestLongHeadersEndNoConnection(t *testing.T) {
	t.Parallel()
	route := strings.Replace(guideBlock(t, "- match: { path: /limits }"), `"cluster":"penstock"`, `"cluster":"BRIDGE"`, 1) + ","
	collector := otlptest.Start(t)
	filter, service := &site{set: longDeadline, cluster: http2Cluster, routes: route}, newTracingSite(collector, "headers", builtInFilter)
	useEnvoy(t, nil, filter, service)
	const limit = 3
	policy := "name: shop\nrules: [{name: api, match: {path: /api/*}, limit: 3/31d fixed_window}]\n"
	t.Run("filter", func(t *testing.T) {
		filter.startBridge(t, policy)
		defer filter.checkConnections(t, filter.bridgeName())()
		for _, a := range []answer{filter.get(t, "/limits", "X-Long", longestHeader), filter.get(t, "/limits?q="+longestHeader)} {
			if a.status != http.StatusOK {
				t.Errorf("a request for limits: status %d: %s", a.status, a.body)
			}
		}
	})
	t.Run("service", func(t *testing.T) {
		b := newBridge(t, policy, "--redis", redistest.Start(t).URL(), "--redis-timeout", "5s", "--rls-listen", "unix:"+service.grpc)
		b.listen = service.bridge
		b.run(t)
		defer service.checkConnections(t, service.bridgeName()+"-grpc")()
		admitted := 0
		for range 5 * limit {
			a := service.get(t, "/api/x", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate", "a="+longestHeader)
			if a.status == http.StatusOK {
				admitted++
			}
		}
		if admitted != limit {
			t.Errorf("%d requests with a long tracestate were admitted, want %d", admitted, limit)
		}
	})
}

// checkConnections returns a function that fails the test if a connection to the cluster has been
// closed since checkConnections was called.
func (s *site) checkConnections(t *testing.T, cluster string) (check func()) {
	closed := func() int { return s.envoy.stat("cluster." + cluster + ".upstream_cx_destroy") }
	before := closed()
	return func() {
		t.Helper()
		if n := closed() - before; n > 0 {
			t.Errorf("%d connections to the bridge were closed", n)
		}
	}
}
