// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// TestLeasesAcrossFronts: the bridge behind an Envoy with two workers and a Caddy, with leases of one limit on one Redis, admit
// exactly the limit between them; and after it each of them refuses.
func TestLeasesAcrossFronts(t *testing.T) {
	const asked = 8_000
	redis := redistest.Start(t)
	policy := strings.NewReplacer("LEASE", "auto", "20000", "10000").Replace(hotPolicy)
	one := &site{set: "on_error: deny\ndeadline: 10s"}
	startEnvoy(t, wasm(t), nil, one)
	one.startBridge(t, policy, "--redis", redis.URL(), "--redis-timeout", "5s")
	file := renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(policy)
	p := startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
	before := redis.Calls("evalsha")
	var got tally
	for _, group := range []*sync.WaitGroup{crowdAt(one.address, 16, &got, times(asked)), crowdAt(p.address, 16, &got, times(asked))} {
		group.Wait()
	}
	calls := redis.Calls("evalsha") - before
	t.Logf("%d admitted, %d refused, %d degraded, %d broken: %d calls", got.admitted.Load(), got.refused.Load(),
		got.serverErrors.Load(), got.broken.Load(), calls)
	if calls*10 > 2*asked {
		t.Errorf("%d calls for %d requests: want a tenth at most", calls, 2*asked)
	}
	p.awaitGivenBack()
	await.Until(t, 20*time.Second, "what the bridge held is back, and the limit used up", func() bool {
		got.ask(http.DefaultClient, "http://"+p.address+"/")
		return got.admitted.Load() >= 10_000
	})
	for range 200 {
		got.ask(http.DefaultClient, "http://"+one.address+"/")
		got.ask(http.DefaultClient, "http://"+p.address+"/")
	}
	if got.admitted.Load() != 10_000 || got.serverErrors.Load() != 0 || got.broken.Load() != 0 {
		t.Errorf("%d admitted with %d degraded and %d broken, want exactly %d", got.admitted.Load(), got.serverErrors.Load(),
			got.broken.Load(), 10_000)
	}
}
