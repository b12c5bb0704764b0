// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

func attackedFilter(t *testing.T, keys []*signer) *attackedFront {
	s := &site{direct: true, set: "deadline: 1s"}
	useEnvoy(t, nil, s)
	b := s.startBridge(t, strings.ReplaceAll(garbagePolicy, "URL", servesKeysOnce(t, keys...)), "--redis", redistest.Start(t).URL(), "--redis-timeout", "1s")
	return &attackedFront{name: "Envoy", kinds: len(forgeries), address: s.address, keys: keys, scrape: b.scrape}
}

func attackedService(t *testing.T, keys []*signer) *attackedFront {
	s := &site{filter: garbageRLS, routes: tokenDescriptor}
	startEnvoy(t, "", nil, s)
	b := newBridge(t, strings.ReplaceAll(garbagePolicy, "URL", servesKeysOnce(t, keys...)), "--rls-listen", "unix:"+s.grpc, "--token", bridgeToken,
		"--redis", redistest.Start(t).URL(), "--redis-timeout", "1s")
	b.listen = s.bridge
	b.run(t)
	eventually.Until(t, patience, "Envoy has reached the service", func() bool {
		return s.get(t, "/", "Authorization", "Bearer x").header.Get("X-RateLimit-Limit") != ""
	})
	return &attackedFront{name: "rate limit service", address: s.address, keys: keys, scrape: b.scrape}
}

// bridge.scrape returns the metrics.
func (b *bridge) scrape() string {
	b.t.Helper()
	a, err := ask(&http.Client{Transport: b.transport()}, "http://bridge/metrics", "Authorization", "Bearer "+bridgeToken)
	if err != nil || a.status != http.StatusOK {
		b.t.Fatal(a.status, err)
	}
	return a.body
}

// openCaddyfile lets requests pass when the store does not answer. Its timeout is long, because the
// flood runs on the same machine. With the default timeout, an otherwise idle machine behaves in
// the same way.
var openCaddyfile = strings.NewReplacer("timeout 5s", "timeout 1s", "\t\ton_error deny\n", "").Replace(editedCaddyfile)

func attackedCaddy(t *testing.T, keys []*signer) *attackedFront {
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(strings.ReplaceAll(garbagePolicy, "URL", servesKeysOnce(t, keys...)))
	p := startCaddy(t, openCaddyfile, "PENSTOCK_REDIS="+redistest.Start(t).URL(), "POLICY="+file.path)
	return &attackedFront{name: "Caddy", kinds: len(forgeries), address: p.address, keys: keys, scrape: p.scrape}
}
