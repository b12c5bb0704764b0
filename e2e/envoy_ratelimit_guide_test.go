// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// guideBlock returns a block of docs/guides/envoy.md as JSON. The argument named first is the first
// line of the block.
func guideBlock(t testing.TB, first string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/guides/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```yaml envoy\n"+first+"\n")
	if !found {
		t.Fatalf("the guide has no block that begins with %q", first)
	}
	block, _, _ = strings.Cut(block, "```")
	var value any
	if err := yaml.Unmarshal([]byte(first+"\n"+block), &value); err != nil {
		t.Fatal(err)
	}
	if fields, ok := value.(map[string]any); ok {
		value = fields["http_filters"]
	}
	encoded, err := json.Marshal(value.([]any)[0])
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// guideRateLimitCluster returns the guide's cluster for the rate limit service, as
// site.rpcCluster.
func guideRateLimitCluster(t testing.TB) string {
	t.Helper()
	cluster := guideBlock(t, "- name: penstock-rls")
	replaced := strings.NewReplacer("penstock-rls", "NAME",
		`{"socket_address":{"address":"127.0.0.1","port_value":8081}}`, `{"pipe":{"path":"SOCKET"}}`).Replace(cluster)
	if !strings.Contains(replaced, "SOCKET") {
		t.Fatalf("the guide's cluster has another address: %s", cluster)
	}
	return replaced
}

// clientRoute makes Envoy send the name of the client to the rate limit service.
const clientRoute = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [
    {actions: [{request_headers: {header_name: x-client, descriptor_key: client}}]}]}},`

// TestEnvoyRateLimitGuide tests the filter and the cluster of the guide. Of a burst of one client,
// exactly the limit is admitted, and other clients are counted meanwhile. Only the address of the
// bridge differs from the guide.
func TestEnvoyRateLimitGuide(t *testing.T) {
	const limit = 5
	up, redis := new(served), redistest.Start(t)
	s := &site{filter: strings.Replace(guideBlock(t, "http_filters:"), "penstock-rls", "RPC_CLUSTER", 1), rpcCluster: guideRateLimitCluster(t), routes: clientRoute}
	e := startEnvoy(t, wasm(t), up, s)
	b := newBridge(t, fmt.Sprintf("name: shop\nrules: [{name: all, per: [\"attr:client\"], limit: %d/31d}]\n", limit),
		"--redis", redis.URL(), "--rls-listen", "unix:"+s.grpc)
	b.listen = s.bridge
	b.run(t)
	eventually.Until(t, patience, "Envoy has reached the service", func() bool {
		a, err := ask(http.DefaultClient, "http://"+s.address+"/", "X-Client", "warm")
		return err == nil && a.header.Get("RateLimit") != ""
	})
	sizes := []struct{ connections, each int }{{2, 600}, {4, 500}, {4, 1000}}
	for _, c := range examOr(sizes, sizes[:2]) {
		name := fmt.Sprintf("burst-%d-%d", c.connections, c.each)
		got, waits := withOtherClient(t, s.address, true, func() map[int]int { return sendBurst(t, s.address, name, c.connections, c.each) })
		t.Logf("%s: %d reached the upstream, answers %v; another client waited %v at most of %d", name, up.of(name), got, waits[len(waits)-1], len(waits))
		if up.of(name) > limit {
			t.Errorf("%s: %d reached the upstream, want %d", name, up.of(name), limit)
		}
	}
	if overflown := e.stat("cluster." + s.bridgeName() + "-grpc.upstream_rq_active_overflow"); overflown > 0 {
		t.Errorf("%d requests did not reach the service, as too many were in progress", overflown)
	}
}
