// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// healthChecked makes Envoy check the health of several bridges, as in docs/guides/envoy.md.
const healthChecked = `health_checks:
- { timeout: 1s, interval: 0.5s, no_traffic_interval: 0.5s, unhealthy_threshold: 1, healthy_threshold: 1, http_health_check: { path: /readyz } }
outlier_detection: { consecutive_5xx: 2, base_ejection_time: 1s, max_ejection_percent: 50 }
`

// severalCluster is a cluster of two bridges. Its health checks have a longer timeout, because on a
// busy machine they may take more than a second.
var severalCluster = strings.NewReplacer(
	"connect_timeout: 1s,", "connect_timeout: 1s, "+
		strings.NewReplacer("\n- ", " [", "} }\nout", "} }], out", "timeout: 1s", "timeout: 10s", "\n", ", ").Replace(healthChecked),
	"{endpoint: {address: {pipe: {path: SOCKET}}}}",
	"{endpoint: {address: {pipe: {path: SOCKET}}}}, {endpoint: {address: {pipe: {path: SOCKET-2}}}}").Replace(bridgeCluster)

// testOtherBridge tests that if one of two bridges has ended, the other decides all requests. All
// requests are also decided while only one of the bridges has read an edit of the policy.
func (s *site) testOtherBridge(t *testing.T, word string) {
	text, err := os.ReadFile("../docs/guides/envoy.md")
	if err != nil || !strings.Contains(string(text), healthChecked) {
		t.Errorf("docs/guides/envoy.md says otherwise how Envoy looks after bridges: %v", err)
	}
	redis := redistest.Start(t)
	policy := strings.Replace(onError(word), "100/31d", "100000/31d", 1)
	args := []string{"--redis", redis.URL(), "--redis-timeout", "5s"}
	first, second := s.startBridge(t, policy, append(args, "--drain-delay", "60s")...), newBridge(t, policy, args...)
	second.listen = s.bridge + "-2"
	second.run(t)
	s.haveBridges(t, 2)
	s.allAreDecided(t)

	first.signal(syscall.SIGTERM)
	s.haveBridges(t, 1)
	s.allAreDecided(t)
	first.kill()
	s.awaitDecided(t)
	s.allAreDecided(t)

	first.args = args
	first.run(t)
	s.haveBridges(t, 2)
	second.kill()
	s.haveBridges(t, 1)
	s.awaitDecided(t)
	s.allAreDecided(t)

	second.run(t)
	s.haveBridges(t, 2)
	unknown := s.envoy.counter("penstock.policy_unknown")
	edited := strings.Replace(policy, "100000/31d", "200000/31d", 1)
	second.policy.edit(edited)
	eventually.Until(t, patience, "one is asked for a version that it has not got", func() bool {
		s.get(t, "/")
		return s.envoy.counter("penstock.policy_unknown") > unknown
	})
	s.allAreDecided(t) // by the other bridge, which has the version
	first.policy.edit(edited)
	eventually.Until(t, patience, "both have it", func() bool { return strings.Contains(first.log.String(), "the edited policy file is in force") })
	s.awaitDecided(t)
	s.allAreDecided(t)
}

// haveBridges waits until Envoy considers n bridges healthy.
func (s *site) haveBridges(t *testing.T, n int) {
	t.Helper()
	eventually.Until(t, patience, fmt.Sprint(n, " bridges are healthy"), func() bool {
		return s.envoy.stat("cluster."+s.bridgeName()+".membership_healthy") == n
	})
}

// allAreDecided checks that each of 40 requests is counted and admitted. The answer to a request
// that on_error admits for lack of a bridge has no RateLimit header.
func (s *site) allAreDecided(t *testing.T) {
	t.Helper()
	for range 40 {
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		if a, err := ask(fresh, "http://"+s.address+"/"); err != nil || a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
			t.Fatalf("status %d, %v, %v; the counters are\n%s", a.status, a.header, err, s.envoy.read("/stats?filter=wasmcustom"))
		}
	}
}
