// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// discoveredFilter configures the filter by ECDS, as in docs/guides/envoy.md. The bridge sends the
// configuration. As long as the bridge is unavailable, the default configuration applies. The
// cluster of the bridge must be static.
const discoveredFilter = `{name: penstock, config_discovery: {
    type_urls: [type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm],
    config_source: {resource_api_version: V3, initial_fetch_timeout: 1s,
      api_config_source: {api_type: GRPC, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: ` + discoveryCluster + `}, initial_metadata: [{key: authorization, value: "Bearer ` + bridgeToken + `"}]}]}},
    apply_default_config_without_warming: true,
    default_config: WASM_CONFIG}}`

// builtInFilter configures Envoy's own rate limit filter.
const builtInFilter = `{name: envoy.filters.http.ratelimit, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: shop, timeout: 5s,
    enable_x_ratelimit_headers: DRAFT_VERSION_03,
    rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: RPC_CLUSTER}, initial_metadata: [{key: authorization, value: "Bearer ` + bridgeToken + `"}]}}}}`

// TestEnvoyOverGRPC tests the bridge as the server that configures the filter by ECDS, and as the
// service that Envoy's own filter calls.
func TestEnvoyOverGRPC(t *testing.T) {
	t.Parallel()
	discovered, builtIn := &site{filter: discoveredFilter, set: "poll: 60m"}, &site{filter: builtInFilter}
	discovered.grpc = useEnvoy(t, nil, discovered, builtIn).discovery
	t.Run("filter by ECDS", discovered.followsDiscovery)
	t.Run("built-in filter", builtIn.limitsByDescriptors)
}

// followsDiscovery tests that the bridge sends the policy to Envoy. Edits take effect soon, and no
// connection is closed. If the filter rejects a configuration, Envoy keeps the previous one. While
// the bridge is down, the last policy stays in force.
func (s *site) followsDiscovery(t *testing.T) {
	s.goesWithoutPolicy(t, "allow")
	settings := filepath.Join(t.TempDir(), "settings")
	write := func(text string) {
		if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("cluster: " + s.bridgeName() + "\n" + longDeadline + "\ntoken: " + bridgeToken + "\n")
	b := newBridge(t, onError("deny"), "--xds-listen", "unix:"+s.grpc, "--xds-wasm", wasm(t), "--xds-filter", settings,
		"--token", bridgeToken)
	b.listen = s.bridge
	s.envoy.awaitPolicyLoad(t, func() { b.run(t) })
	s.awaitDecided(t)
	edited := s.pollAll(t, func() { b.policy.edit(strings.Replace(onError("deny"), "100/31d", "100000/31d", 1)) })
	t.Logf("an edit counts for all connections after %v", edited)
	b.kill()
	write("cluster: " + s.bridgeName() + "\ndeadline: 0\ntoken: " + bridgeToken + "\n")
	b.run(t)
	eventually.Until(t, 30*time.Second, "Envoy refuses what the filter does, and the log of the bridge says so", func() bool {
		return strings.Contains(b.log.String(), "an Envoy rejected the policy and keeps the previous one")
	})
	if a := s.get(t, "/"); a.header.Get("X-RateLimit-Limit") != "100000" {
		t.Errorf("after a refused configuration: status %d, %v", a.status, a.header)
	}
	b.kill()
	s.checkDegraded(t, s.get(t, "/"), "deny")
}

// pollAll sends requests over eight connections, and calls edit(), which changes the limit. It
// continues until an answer on each connection reports the new limit. No connection may be closed,
// and no request may fail. pollAll returns how long this took after the edit.
func (s *site) pollAll(t *testing.T, edit func()) time.Duration {
	t.Helper()
	const connections, threads = 8, 3
	var dials, failures, seen atomic.Int64
	loaded := s.envoy.counter("penstock.policy_loaded")
	started := time.Now()
	var group sync.WaitGroup
	for range connections {
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
		group.Go(func() {
			defer client.CloseIdleConnections()
			for tick := time.Tick(5 * time.Millisecond); time.Since(started) < 2*patience; <-tick {
				a, err := ask(client, "http://"+s.address+"/")
				limit, _ := strconv.Atoi(a.header.Get("X-RateLimit-Limit"))
				switch {
				case err != nil || a.status >= 500:
					failures.Add(1)
				case limit == 100_000:
					seen.Add(1)
					return
				}
			}
		})
	}
	eventually.Until(t, patience, "all are connected", func() bool { return dials.Load() >= connections })
	edit()
	edited := time.Now()
	group.Wait()
	took := time.Since(edited)
	if dials.Load() != connections || failures.Load() != 0 || seen.Load() != connections {
		t.Errorf("%d connections for %d clients, %d failures, %d have seen the edit", dials.Load(), connections, failures.Load(), seen.Load())
	}
	if got := s.envoy.counter("penstock.policy_loaded"); got < loaded+threads {
		t.Errorf("%d policies were loaded, want %d: it did not come from the control plane", got-loaded, threads)
	}
	return took
}

// limitsByDescriptors tests Envoy's own filter, which calls the bridge with descriptors of the
// address and the path.
func (s *site) limitsByDescriptors(t *testing.T) {
	b := newBridge(t, `name: shop
identify: [ip]
rules:
  - {name: api, match: {path: /api/*}, limit: 3/31d fixed_window}
`, "--rls-listen", "unix:"+s.grpc, "--token", bridgeToken)
	b.listen = s.bridge
	b.run(t)
	eventually.Until(t, patience, "Envoy has reached the service", func() bool {
		return s.get(t, "/api/warm").header.Get("X-RateLimit-Limit") != ""
	})
	for i := range 5 {
		a, want := s.get(t, "/api/orders?page=1"), http.StatusOK
		if i >= 2 { // one unit was used above
			want = http.StatusTooManyRequests
		}
		if remaining := strconv.Itoa(max(0, 1-i)); a.status != want || a.header.Get("X-RateLimit-Remaining") != remaining {
			t.Errorf("request %d: status %d, %v, want %d and %s remaining", i+1, a.status, a.header, want, remaining)
		}
	}
	if a := s.get(t, "/"); a.status != http.StatusOK {
		t.Errorf("what no rule is for: status %d", a.status)
	}
	b.kill()
	if a := s.get(t, "/api/orders"); a.status != http.StatusOK {
		t.Errorf("without the bridge: status %d: Envoy lets requests pass then", a.status)
	}
}
