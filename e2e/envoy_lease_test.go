// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestLeasesAcrossFronts tests two Envoys with two workers each and two Caddys, which lease units
// of one limit from one Redis. Together they admit exactly the limit. The filters decide at least
// half of their requests without calling the bridge.
func TestLeasesAcrossFronts(t *testing.T) {
	t.Parallel()
	const asked, limit = 2_000, 5_000
	redis := redistest.Start(t)
	policy := strings.NewReplacer("LEASE", "auto", "6000", strconv.Itoa(limit)).Replace(hotPolicy)
	sites := []*site{{set: "on_error: deny\ndeadline: 10s"}, {set: "on_error: deny\ndeadline: 10s"}}
	var addresses []string
	var caddies []*process
	for _, s := range sites {
		useEnvoy(t, nil, s)
		s.startBridge(t, policy, "--redis", redis.URL(), "--redis-timeout", "5s")
		addresses = append(addresses, s.address)
		file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
		file.edit(policy)
		p := startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
		addresses, caddies = append(addresses, p.address), append(caddies, p)
	}
	before := redis.Calls("evalsha")
	var got tally
	var groups []*sync.WaitGroup
	for _, address := range addresses {
		groups = append(groups, startLoadOn(address, 16, &got, times(asked)))
	}
	for _, group := range groups {
		group.Wait()
	}
	calls := redis.Calls("evalsha") - before
	decidedByFilter := 0
	for _, s := range sites {
		decidedByFilter += s.counter("leased") + s.counter("remembered")
	}
	t.Logf("%d admitted, %d refused, %d degraded, %d broken: %d calls; the filters decided %d of %d themselves", got.admitted.Load(),
		got.refused.Load(), got.serverErrors.Load(), got.broken.Load(), calls, decidedByFilter, 2*asked)
	if calls*10 > 4*asked {
		t.Errorf("%d calls for %d requests: want a tenth at most", calls, 4*asked)
	}
	if decidedByFilter*2 < 2*asked {
		t.Errorf("the filters decided %d of %d requests themselves, want half at least", decidedByFilter, 2*asked)
	}
	for _, p := range caddies {
		p.awaitReturned()
	}
	eventually.Until(t, patience, "what the filters and bridges held is back, and the limit used up", func() bool {
		for _, address := range addresses {
			got.ask(http.DefaultClient, "http://"+address+"/")
		}
		return got.admitted.Load() >= limit
	})
	for range 200 {
		for _, address := range addresses {
			got.ask(http.DefaultClient, "http://"+address+"/")
		}
	}
	if got.admitted.Load() != limit || got.serverErrors.Load() != 0 || got.broken.Load() != 0 {
		t.Errorf("%d admitted with %d degraded and %d broken, want exactly %d", got.admitted.Load(), got.serverErrors.Load(),
			got.broken.Load(), limit)
	}
}

// counter returns a counter of the filter. The site must be the only one of its Envoy.
func (s *site) counter(name string) int { return s.envoy.counter("penstock." + name) }

// awaitForgotten waits until no worker denies requests because of a remembered denial.
func (s *site) awaitForgotten(t *testing.T) {
	t.Helper()
	s.awaitBothWorkers(t, "refusals are forgotten", func(a answer) bool { return a.status != http.StatusTooManyRequests })
}

// TestOverTheLimitInTheFilter tests a client that is far over its limit, without leases. The filter
// itself denies most of the requests, and the bridge is asked about only a small part of them.
func TestOverTheLimitInTheFilter(t *testing.T) {
	t.Parallel()
	const asked, limit = 3_000, 20
	one := &site{set: "on_error: deny\ndeadline: 10s"}
	useEnvoy(t, nil, one)
	one.startBridge(t, "name: shop\non_error: deny\nrules: [{name: all, limit: 20/31d fixed_window}]\n")
	var got tally
	startLoadOn(one.address, 8, &got, times(asked)).Wait()
	remembered := one.counter("remembered")
	t.Logf("%d admitted, %d refused, of which %d by the filter itself", got.admitted.Load(), got.refused.Load(), remembered)
	if got.admitted.Load() != limit || got.refused.Load() != asked-limit {
		t.Errorf("%d admitted, %d refused, want %d and %d", got.admitted.Load(), got.refused.Load(), limit, asked-limit)
	}
	if remembered < asked/2 {
		t.Errorf("only %d of %d refusals were the filter's own", remembered, asked-limit)
	}
}

// TestBridgeKilledWithUnitsOut tests that while the bridge is down, the workers use up the units
// that they hold, and that on_error decides after that. When the bridge is back, limits are
// enforced again. The limit is never exceeded.
func TestBridgeKilledWithUnitsOut(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	one := &site{set: "on_error: deny\ndeadline: 2s"}
	useEnvoy(t, nil, one)
	b := one.startBridge(t, strings.Replace(hotPolicy, "LEASE", "auto", 1), "--redis", redis.URL(), "--redis-timeout", "5s")
	var got tally
	stop := make(chan struct{})
	load := startLoadOn(one.address, 8, &got, func() bool {
		select {
		case <-stop:
			return false
		default:
			return true
		}
	})
	eventually.Until(t, patience, "the filter decides by itself", func() bool { return one.counter("leased") > 500 })
	b.kill()
	eventually.Until(t, patience, "on_error decides", func() bool { return got.serverErrors.Load() > 100 })
	degraded := got.serverErrors.Load()
	b.run(t)
	eventually.Until(t, envoyPatience, "the limit is used up", func() bool { return got.refused.Load() > 500 })
	close(stop)
	load.Wait()
	admitted := got.admitted.Load()
	t.Logf("%d admitted, %d refused, %d degraded without the bridge", admitted, got.refused.Load(), degraded)
	if admitted > 6000 || admitted < 3000 || got.broken.Load() != 0 {
		t.Errorf("%d admitted of 6000, %d broken", admitted, got.broken.Load())
	}
}
