// SPDX-License-Identifier: Apache-2.0

package front

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// fullSettings are settings with every part that a configuration can have. STORE stands for the
// store.
const fullSettings = `policy: FOLDER/policy.yaml
shadow_policy: FOLDER/shadow.yaml
events_to: FOLDER/events
status_path: /limits
admin: {listen: "127.0.0.1:0"}
otlp: {endpoint: "COLLECTOR"}
memory_limit: 512MiB
directory: {}
store: STORE
`

// fullPolicy is a policy with a keys file, leases, a cost that depends on the response, and a
// throttle rule.
const fullPolicy = `name: shop
identify:
  - api_key: {keys_file: keys.toml}
  - ip: {}
rules:
  - {name: all, lease: auto, per: [], limit: 1000000/31d}
  - {name: costly, match: {path: /costly}, limit: 1000000/31d, cost_after: {estimate: 2, header: X-Cost, default: 1}}
  - {name: slow, match: {path: /slow}, limit: 1000000/31d, action: throttle, throttle: {max_delay: 1s}}
`

// fullConfiguration returns fullSettings with the test's folder and collector. The caller replaces
// STORE.
func fullConfiguration(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	keys, err := os.ReadFile("../../examples/keys.toml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"policy.yaml": fullPolicy, "shadow.yaml": strings.Replace(fullPolicy, "1000000", "5", 1), "keys.toml": string(keys)} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(collector.Close)
	return strings.NewReplacer("FOLDER", folder, "COLLECTOR", collector.URL).Replace(fullSettings)
}

// TestUpdatesLeaveNothing tests that configurations which were replaced or rejected leave nothing
// behind: no goroutine, no store, and no memory.
func TestUpdatesLeaveNothing(t *testing.T) {
	const updates = 20
	redis := redistest.Start(t)
	settings := fullConfiguration(t)
	store := func(n int) string { return fmt.Sprintf("{type: redis, url: %q, timeout: %dms}", redis.URL(), 5000+n) }
	for name, text := range map[string]func(n int) string{
		"the same store": func(n int) string {
			return strings.NewReplacer("STORE", store(0), "512MiB", fmt.Sprintf("%dMiB", 500+n)).Replace(settings)
		},
		"another store": func(n int) string { return strings.Replace(settings, "STORE", store(n), 1) },
		"a store in memory": func(n int) string {
			return strings.Replace(settings, "STORE", []string{store(n), "{type: memory}"}[n%2], 1)
		},
		"without a store": func(n int) string {
			return strings.Replace(strings.Replace(settings, "store: STORE", "", 1), "512MiB", fmt.Sprintf("%dMiB", 500+n), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewProcess(slog.New(slog.DiscardHandler))
			used := func(n int) *Front {
				t.Helper()
				f := openedIn(t, p, text(n))
				for _, path := range []string{"/", "/costly", "/slow", "/limits"} {
					ask(t, f, request(path, "x-api-key", "made-up"))
				}
				return f
			}
			now := used(0)
			before := runtime.NumGoroutine()
			var fronts []weak.Pointer[Front]
			var stores []weak.Pointer[sharedStore]
			for n := range updates {
				old := now
				now = used(n + 1)
				fronts, stores = append(fronts, weak.Make(old)), append(stores, weak.Make(old.store))
				if err := old.Close(); err != nil {
					t.Error(err)
				}
				rejected, err := ReadSettings([]byte(strings.Replace(text(n), "/policy.yaml", "/nowhere.yaml", 1)))
				if err != nil {
					t.Fatal(err)
				}
				if f, err := p.Open(rejected); err == nil {
					t.Errorf("the configuration is accepted: %v", f.Close())
				}
			}
			if len(p.fronts) != 1 || len(p.stores) != 1 || len(p.senders) != 1 || len(p.reports.sinks) != 1 || p.verifiers.Len() != 1 || len(p.memory.limits) != 1 {
				t.Errorf("%d fronts, %d stores, %d senders, %d sinks, %d verifiers and %d limits of memory, want one of each", len(p.fronts), len(p.stores),
					len(p.senders), len(p.reports.sinks), p.verifiers.Len(), len(p.memory.limits))
			}
			eventually.Until(t, 20*time.Second, fmt.Sprintf("there are at most %d goroutines, as before", before), func() bool { return runtime.NumGoroutine() <= before })
			kept := func() (n int) {
				for i := range fronts {
					if s := stores[i].Value(); fronts[i].Value() != nil || s != nil && s != now.store {
						n++
					}
				}
				return n
			}
			runtime.GC()
			if n := kept(); n > 1 {
				t.Errorf("%d of %d old configurations are in memory after a collection", n, updates)
			}
			if err := now.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
