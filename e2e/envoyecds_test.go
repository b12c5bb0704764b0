// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// watchedFilter is the filter by ECDS out of a file.
const watchedFilter = `{name: penstock, config_discovery: {
    type_urls: [type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm],
    config_source: {resource_api_version: V3, path_config_source: {path: FOLDER/filter.yaml, watched_directory: {path: FOLDER}}}}}`

// TestEnvoyKeepsThePolicyAcrossUpdates: Envoy makes a new plugin of every change of the filter's configuration, also of one that
// asks the bridge for its policy; no request is decided without one meanwhile.
func TestEnvoyKeepsThePolicyAcrossUpdates(t *testing.T) {
	folder := t.TempDir()
	write := func(version int) {
		settings := fmt.Sprintf(`{"@type": type.googleapis.com/google.protobuf.StringValue, value: "cluster: bridge-0\non_error: deny\ndeadline: %dms\n"}`,
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
	s := &site{filter: strings.ReplaceAll(watchedFilter, "FOLDER", folder)}
	e := startEnvoy(t, wasm(t), nil, s)
	s.startBridge(t, strings.Replace(onError("deny"), "100/31d", "10000000/31d", 1))
	s.isDecided(t)
	missing := e.counter("penstock.no_policy")
	var got tally
	done := make(chan struct{})
	group := crowdAt(s.address, 16, &got, atLeastUntil(done, 1000))
	updates := func() int {
		return e.stat("extension_config_discovery.http_filter.penstock.config_reload")
	}
	for version := 1; version <= 8; version++ {
		before := updates()
		write(version)
		await.Until(t, 30*time.Second, "Envoy has the update", func() bool { return updates() > before })
		asked := got.admitted.Load()
		await.Until(t, 30*time.Second, "requests go on", func() bool { return got.admitted.Load() > asked+200 })
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
