// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// watchedFilter makes Envoy read the filter's configuration from a file by ECDS.
const watchedFilter = `{name: penstock, config_discovery: {
    type_urls: [type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm],
    config_source: {resource_api_version: V3, path_config_source: {path: FOLDER/filter.yaml, watched_directory: {path: FOLDER}}}}}`

// newWatchedSite returns a site whose filter is configured by a file, and a function that writes
// the file. For each version of the file, Envoy creates a new plugin in each worker.
func newWatchedSite(t *testing.T) (s *site, write func(version int)) {
	t.Helper()
	folder := t.TempDir()
	write = func(version int) {
		t.Helper()
		settings := fmt.Sprintf(`{"@type": type.googleapis.com/google.protobuf.StringValue, value: "cluster: watched\non_error: deny\ndeadline: %dms\n"}`,
			5000+version)
		config := strings.NewReplacer("SETTINGS", settings, "WASM_FILE", wasm(t)).Replace(wasmConfig)
		text := fmt.Sprintf(`{version_info: "%d", resources: [{"@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig,
  name: penstock, typed_config: %s}]}`, version, config)
		err := os.WriteFile(filepath.Join(folder, "next"), []byte(text), 0o600)
		if err == nil {
			err = os.Rename(filepath.Join(folder, "next"), filepath.Join(folder, "filter.yaml"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write(0)
	return &site{filter: strings.ReplaceAll(watchedFilter, "FOLDER", folder), cluster: strings.ReplaceAll(bridgeCluster, "NAME", "watched")}, write
}

// envoy.updates returns how often Envoy has loaded a new configuration of the filter.
func (e *envoy) updates() int {
	return e.stat("extension_config_discovery.http_filter.penstock.config_reload")
}

// TestEnvoyKeepsThePolicyAcrossUpdates tests changes of the filter's configuration, for each of
// which Envoy creates new plugins. No request is decided without a policy meanwhile, although the
// policy comes from the bridge.
func TestEnvoyKeepsThePolicyAcrossUpdates(t *testing.T) {
	t.Parallel()
	s, write := newWatchedSite(t)
	e := useEnvoy(t, nil, s)
	s.startBridge(t, strings.Replace(onError("deny"), "100/31d", "10000000/31d", 1))
	s.awaitDecided(t)
	missing := e.counter("penstock.no_policy")
	var got tally
	done := make(chan struct{})
	group := startLoadOn(s.address, 16, &got, atLeastUntil(done, 1000))
	for version := 1; version <= 8; version++ {
		before := e.updates()
		write(version)
		eventually.Until(t, 30*time.Second, "Envoy has the update", func() bool { return e.updates() > before })
		asked := got.admitted.Load()
		eventually.Until(t, 30*time.Second, "requests go on", func() bool { return got.admitted.Load() > asked+200 })
	}
	close(done)
	group.Wait()
	if got.refused.Load()+got.serverErrors.Load()+got.broken.Load() != 0 || e.counter("penstock.no_policy") != missing {
		t.Errorf("of %d requests %d got 5xx, %d were broken, and %d were decided without a policy", got.admitted.Load(),
			got.serverErrors.Load(), got.broken.Load(), e.counter("penstock.no_policy")-missing)
	}
	if a := s.get(t, "/"); a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
		t.Errorf("at last: status %d, %v", a.status, a.header)
	}
}

// TestUnitsAreInheritedAcrossUpdates tests that when Envoy replaces plugins, the new plugins return
// the units that the old ones held. Only the units of calls that are in flight at that moment may
// be lost.
func TestUnitsAreInheritedAcrossUpdates(t *testing.T) {
	t.Parallel()
	const updates, limit = 10, 10_000_000
	redis := redistest.Start(t)
	s, write := newWatchedSite(t)
	e := startEnvoy(t, wasm(t), nil, s) // not a shared Envoy, because another test may have left units there
	policy := strings.NewReplacer("LEASE", "auto", "6000", strconv.Itoa(limit), "per: [], ", "").Replace(hotPolicy)
	s.startBridge(t, policy, "--redis", redis.URL(), "--redis-timeout", "5s")
	looks := 0
	remaining := func() int {
		n, err := strconv.Atoi(s.get(t, "/").header.Get("X-RateLimit-Remaining"))
		if err != nil {
			return -1
		}
		looks++
		return n
	}
	eventually.Until(t, envoyPatience, "the bridge decides", func() bool { return remaining() >= 0 })
	begin, before := remaining(), looks
	var got tally
	for version := 1; version <= updates; version++ {
		done := make(chan struct{})
		group := startLoadOn(s.address, 16, &got, atLeastUntil(done, 100))
		eventually.Until(t, patience, "units are in hand", func() bool { return s.counter("units_in_hand") > 0 })
		taken := e.updates()
		write(version)
		eventually.Until(t, patience, "Envoy has the update", func() bool { return e.updates() > taken })
		close(done)
		group.Wait()
	}
	admitted, used, lost, experience := int(got.admitted.Load()), 0, 0, time.Now()
	eventually.Until(t, patience, "what was not used is back", func() bool {
		// As long as other workers hold units, a response reports too many remaining units, because
		// it reports the view of one worker. The gauge of held units may lag behind.
		if s.counter("units_in_hand") > 0 {
			experience = time.Now()
		}
		if time.Since(experience) < 2*time.Second {
			return false
		}
		used = begin - remaining()
		lost = used - admitted - (looks - before)
		return lost*10 <= admitted // if nothing was inherited, a third of the units would be lost
	})
	t.Logf("%d admitted and %d looks, %d used: %d lost", admitted, looks-before, used, lost)
	if lost < 0 || got.serverErrors.Load()+got.broken.Load() != 0 || s.counter("panic") != 0 {
		t.Errorf("%d admitted that were not charged, %d decided by on_error, %d broken, %d panics", -lost, got.serverErrors.Load(), got.broken.Load(), s.counter("panic"))
	}
}
