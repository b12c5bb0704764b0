// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestNeverOverAcrossFronts tests five proxies that share one policy and one Redis: two Envoys with
// the filter, an Envoy with the native module, and two Caddys. Each Envoy has two workers. Under
// concurrent load, all proxies together admit exactly the limit. The deadlines are long, because a
// request that is answered too late is charged but not admitted.
func TestNeverOverAcrossFronts(t *testing.T) {
	t.Parallel()
	const policy = "name: shop\non_error: deny\nrules: [{name: all, per: [], limit: 1000/31d}]\n"
	redis := redistest.Start(t)
	var addresses []string
	one, two := &site{set: "on_error: deny\ndeadline: 10s"}, &site{set: "on_error: deny\ndeadline: 10s"}
	var starting sync.WaitGroup
	for _, s := range []*site{one, two} {
		starting.Go(func() { useEnvoy(t, nil, s) })
	}
	for range 2 {
		file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
		file.edit(policy)
		addresses = append(addresses, startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path).address)
	}
	_, native := startModule(t, module(t), nil, policy+inRedis(redis))
	addresses = append(addresses, native[0].address)
	starting.Wait()
	for _, s := range []*site{one, two} {
		s.startBridge(t, policy, "--redis", redis.URL(), "--redis-timeout", "5s")
		addresses = append(addresses, s.address)
	}
	if t.Failed() {
		return
	}
	var got tally
	var groups []*sync.WaitGroup
	for _, address := range addresses {
		groups = append(groups, startLoadOn(address, 16, &got, times(requests)))
	}
	for _, group := range groups {
		group.Wait()
	}
	admitted, refused, degraded, broken := got.admitted.Load(), got.refused.Load(), got.serverErrors.Load(), got.broken.Load()
	t.Logf("%d admitted, %d refused, %d degraded, %d broken", admitted, refused, degraded, broken)
	if admitted != limit || refused != int64(len(addresses)*requests-limit) {
		t.Errorf("admitted %d, want exactly %d of %d", admitted, limit, len(addresses)*requests)
	}
	for _, address := range addresses {
		if a, err := ask(http.DefaultClient, "http://"+address+"/"); err != nil || a.status != http.StatusTooManyRequests {
			t.Errorf("%s admits another one: %d, %v", address, a.status, err)
		}
	}
}
