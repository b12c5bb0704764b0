// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// discoveredModule makes Envoy read the module's configuration from a file, by ECDS.
const discoveredModule = `{name: NAME, config_discovery: {
    type_urls: [type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter],
    config_source: {resource_api_version: V3, path_config_source: {path: FOLDER/filter.yaml, watched_directory: {path: FOLDER}}}}}`

// fileSite is a site that reads the module's configuration from a file.
type fileSite struct {
	*site
	name, folder string
	version      int
}

// newDiscovered returns a site whose module has the given settings.
func newDiscovered(t testing.TB, name, settings string) *fileSite {
	t.Helper()
	d := &fileSite{name: name, folder: t.TempDir()}
	d.site = &site{filter: strings.NewReplacer("NAME", name, "FOLDER", d.folder).Replace(discoveredModule)}
	d.write(t, settings)
	return d
}

// fileSite.write replaces the settings.
func (d *fileSite) write(t testing.TB, settings string) {
	t.Helper()
	d.version++
	text := fmt.Sprintf(`{version_info: "%d", resources: [{"@type": type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig,
  name: %s, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter,
  dynamic_module_config: {name: penstock, do_not_close: true}, filter_name: penstock,
  filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: %s}}}]}`, d.version, d.name, strconv.Quote(settings))
	err := os.WriteFile(filepath.Join(d.folder, "next"), []byte(text), 0o600)
	if err == nil {
		err = os.Rename(filepath.Join(d.folder, "next"), filepath.Join(d.folder, "filter.yaml"))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// countLoaded returns the number of versions of the configuration that Envoy has loaded, and
// countRejected the number that Envoy has rejected.
func (d *fileSite) countLoaded() int   { return d.stat("config_reload") }
func (d *fileSite) countRejected() int { return d.stat("config_fail") }

func (d *fileSite) stat(name string) int {
	return d.envoy.stat("extension_config_discovery.http_filter." + d.name + "." + name)
}

// leasedShop is a policy with leases and a limit of a million.
const leasedShop = "name: shop\nlease: auto\non_error: deny\nrules: [{name: all, limit: 1000000/31d}]\n"

// TestModuleUpdates replaces the module's configuration ten times under load. Each request is
// admitted, and no unit is lost.
func TestModuleUpdates(t *testing.T) {
	t.Parallel()
	const updates = 10
	redis := redistest.Start(t)
	d := newDiscovered(t, "penstock", leasedShop+inRedis(redis))
	e := startEnvoyIn(t, []string{modulePath(t)}, "", nil, d.site)
	var got tally
	done := make(chan struct{})
	group := startLoadOn(d.address, 16, &got, atLeastUntil(done, 1_000))
	for n := range updates {
		before := d.countLoaded()
		// Every second version changes the deadline, and so begins a new store.
		d.write(t, leasedShop+fmt.Sprintf("memory_limit: %dMiB\n", 500+n)+strings.Replace(inRedis(redis), "5s", fmt.Sprintf("%ds", 5+n/2), 1))
		eventually.Until(t, patience, "Envoy has the update", func() bool { return d.countLoaded() > before })
		asked := got.admitted.Load()
		eventually.Until(t, patience, "requests go on", func() bool { return got.admitted.Load() > asked+200 })
	}
	d.write(t, "rules: [")
	eventually.Until(t, patience, "Envoy rejects what is wrong", func() bool { return d.countRejected() > 0 })
	close(done)
	group.Wait()
	if got.refused.Load()+got.serverErrors.Load()+got.broken.Load() != 0 {
		t.Errorf("%d admitted, %d denied, %d 5xx, %d broken: %s", got.admitted.Load(), got.refused.Load(), got.serverErrors.Load(),
			got.broken.Load(), got.summarizeOthers())
	}
	e.stop(t)
	again := newDiscovered(t, "penstock", strings.Replace(leasedShop, "lease: auto", "lease: \"off\"", 1)+inRedis(redis))
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, again.site)
	a := again.get(t, "/")
	if left, want := a.number("X-RateLimit-Remaining"), 1_000_000-got.admitted.Load()-1; left != want {
		t.Errorf("after %d requests and one, %d are left, want %d: %d, %v", got.admitted.Load(), left, want, a.status, a.header)
	}
}

// envoy.stop ends Envoy with SIGTERM.
func (e *envoy) stop(t testing.TB) {
	t.Helper()
	e.endBy(t, syscall.SIGTERM)
}

// endBy sends Envoy a signal, and waits until it has ended.
func (e *envoy) endBy(t testing.TB, signal syscall.Signal) {
	t.Helper()
	e.signal(signal)
	eventually.Until(t, patience, "Envoy ends", func() bool {
		select {
		case <-e.done:
			return true
		default:
			return false
		}
	})
}

// TestModuleClosesInTheBackground tests that Envoy does not wait until replaced configurations have
// been closed. Their units cannot be returned because Redis hangs, so each of them takes a second
// to close.
func TestModuleClosesInTheBackground(t *testing.T) {
	t.Parallel()
	const count, most = 20, 15 * time.Second
	redis := redistest.Start(t)
	var all []*fileSite
	var sites []*site
	for n := range count {
		name := fmt.Sprintf("penstock-%d", n)
		all = append(all, newDiscovered(t, name, strings.Replace(leasedShop, "shop", name, 1)+strings.Replace(inRedis(redis), "5s", fmt.Sprintf("%dms", 9000+n), 1)))
		sites = append(sites, all[n].site)
	}
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, sites...)
	var got tally
	for _, d := range all {
		startLoadOn(d.address, 2, &got, times(100)).Wait() // now the module holds units
	}
	redis.Pause()
	before, begin := all[0].countLoaded(), time.Now()
	for _, d := range all {
		d.write(t, threeADay)
	}
	for _, d := range all {
		eventually.Until(t, 2*count*time.Second, "Envoy has the update", func() bool { return d.countLoaded() > before })
	}
	took := time.Since(begin)
	redis.Resume()
	t.Logf("%d configurations ended after %v", count, took)
	if took > most || got.admitted.Load() != count*100 {
		t.Errorf("%d configurations ended after %v, and %d requests were admitted", count, took, got.admitted.Load())
	}
}

// TestModuleUpdatesRememberAnOutage tests updates of the store's settings during an outage of
// Redis. After an update, the module still knows the units that Redis had counted before the outage
// and those that the module has admitted since.
func TestModuleUpdatesRememberAnOutage(t *testing.T) {
	t.Parallel()
	const limit = 1000
	redis := redistest.Start(t)
	settings := func(timeout string) string {
		return "name: remembered\nrules: [{name: all, limit: 1000/31d fixed_window}]\n" + strings.Replace(inRedis(redis), "5s", timeout, 1)
	}
	d := newDiscovered(t, "penstock", settings("250ms"))
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, d.site)
	var got tally
	asked := int64(0) // admitted requests that the tally does not count
	eventually.Until(t, patience, "Redis decides", func() bool {
		asked++
		return d.get(t, "/").header.Get("X-RateLimit-Limit") != ""
	})
	startLoadOn(d.address, 16, &got, times(200)).Wait()
	redis.Pause()
	startLoadOn(d.address, 16, &got, times(300)).Wait()
	for _, timeout := range []string{"260ms", "270ms"} {
		before := d.countLoaded()
		d.write(t, settings(timeout))
		eventually.Until(t, patience, "Envoy has the update", func() bool { return d.countLoaded() > before })
		startLoadOn(d.address, 16, &got, times(limit)).Wait()
	}
	redis.Resume()
	eventually.Until(t, patience, "Redis decides again", func() bool { return d.get(t, "/").status == http.StatusTooManyRequests })
	startLoadOn(d.address, 16, &got, times(100)).Wait()
	if sum := got.admitted.Load() + asked; sum != limit || got.broken.Load() != 0 {
		t.Errorf("%d requests are admitted of %d, and %d broke: %s", sum, limit, got.broken.Load(), got.summarizeOthers())
	}
}

// TestModuleWaitingRequestsSurviveAnUpdate tests that requests that wait for a hung Redis are
// decided by the configuration with which they began, even if that configuration is replaced while
// they wait. It is replaced alone (by ECDS), with its listener (by LDS), or with its route (by
// RDS). Later requests are decided by the new configuration.
func TestModuleWaitingRequestsSurviveAnUpdate(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	many := strings.Replace(threeADay, "3/31d", "1000/31d", 1)
	t.Run("ECDS", func(t *testing.T) {
		d := newDiscovered(t, "penstock", many+inRedis(redis))
		startEnvoyIn(t, []string{modulePath(t)}, "", nil, d.site)
		d.survivesAnUpdate(t, redis, d)
	})
	t.Run("LDS", func(t *testing.T) {
		l := startListening(t, strings.Replace(many, "shop", "listened", 1)+inRedis(redis))
		l.survivesAnUpdate(t, redis, l)
	})
	t.Run("RDS", func(t *testing.T) {
		r := startRouting(t, strings.Replace(many, "shop", "routed", 1)+inRedis(redis))
		r.survivesAnUpdate(t, redis, r)
	})
}

// updatableSite is a site whose module can get other settings while Envoy runs.
type updatableSite interface {
	write(t testing.TB, settings string)
	countLoaded() int
}

// survivesAnUpdate is one case of [TestModuleWaitingRequestsSurviveAnUpdate].
func (s *site) survivesAnUpdate(t *testing.T, redis *redistest.Server, d updatableSite) {
	const waiting = 50
	e := s.envoy
	eventually.Until(t, patience, "Redis decides", func() bool { return s.get(t, "/").status == http.StatusOK })
	redis.Pause()
	answers := make(chan answer, waiting)
	for range waiting {
		go func() {
			a, err := ask(http.DefaultClient, "http://"+s.address+"/")
			if err != nil {
				a.body = err.Error()
			}
			answers <- a
		}()
	}
	active := "http." + s.name + ".downstream_rq_active"
	eventually.Until(t, patience, "they wait", func() bool { return e.stat(active) == waiting })
	before := d.countLoaded()
	d.write(t, threeADay)
	eventually.Until(t, patience, "Envoy has the update", func() bool { return d.countLoaded() > before })
	redis.Resume()
	for range waiting {
		if a := <-answers; a.status != http.StatusOK || a.header.Get("X-RateLimit-Limit") != "1000" {
			t.Errorf("status %d, %v %s", a.status, a.header, a.body)
		}
	}
	// Connections that are already open still belong to the previous listener, so each request
	// below uses a new connection.
	own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	eventually.Until(t, patience, "the new configuration decides", func() bool {
		a, err := ask(own, "http://"+s.address+"/")
		return err == nil && a.header.Get("X-RateLimit-Limit") == "3"
	})
	e.mustRun()
}

// listening is a site that reads the configuration of its listener from a file.
type listening struct {
	*site
	folder, settings, listener string
	version                    int
}

// startListening runs an Envoy with one site, whose module has the given settings.
func startListening(t testing.TB, settings string) *listening {
	t.Helper()
	l := &listening{site: &site{filter: moduleFilter(settings)}, folder: t.TempDir(), settings: settings}
	e := &envoy{admin: freeport.Address(t)}
	head, rest, _ := strings.Cut(e.configuration(t, "", startUpstream(t, nil), []*site{l.site}), "  listeners:\n  - ")
	listener, clusters, found := strings.Cut(rest, "  clusters:\n")
	if !found {
		t.Fatalf("the configuration has no clusters: %s", rest)
	}
	l.listener = listener
	l.write(t, settings)
	e.runWith(t, head+"  clusters:\n"+clusters+"dynamic_resources: {lds_config: {resource_api_version: V3, "+
		"path_config_source: {path: "+l.folder+"/listener.yaml, watched_directory: {path: "+l.folder+"}}}}\n")
	eventually.Until(t, patience, "Envoy listens", func() bool { return l.countLoaded() > 0 })
	return l
}

// listening.write replaces the listener by one whose module has other settings.
func (l *listening) write(t testing.TB, settings string) {
	t.Helper()
	l.version++
	listener := strings.Replace(l.listener, moduleFilter(l.settings), moduleFilter(settings), 1)
	text := fmt.Sprintf(`{version_info: "%d", resources: [{"@type": type.googleapis.com/envoy.config.listener.v3.Listener, %s]}`, l.version,
		strings.TrimPrefix(listener, "{"))
	newRenamedFile(t, filepath.Join(l.folder, "listener.yaml")).edit(text)
}

// countLoaded returns how many versions of the listener Envoy has loaded.
func (l *listening) countLoaded() int { return l.envoy.stat("listener_manager.lds.update_success") }

// runWith runs an Envoy with the configuration and with two workers.
func (e *envoy) runWith(t testing.TB, configuration string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	overwritten(t, file).edit(configuration)
	e.run(t, file, "--concurrency", "2", "--use-dynamic-base-id", "--disable-hot-restart")
}

// routing is a site that reads its routes from a file. All requests take a route that has its own
// settings for the module.
type routing struct {
	*site
	folder, settings, table string
	version                 int
}

// startRouting runs an Envoy with one site, whose route has the given settings for the module.
func startRouting(t testing.TB, settings string) *routing {
	t.Helper()
	other := "name: other\nrules: [{name: all, limit: 7/31d}]\n"
	r := &routing{site: &site{filter: moduleFilter(other), routes: routeOf("/", settings)}, folder: t.TempDir(), settings: settings}
	e := &envoy{admin: freeport.Address(t)}
	head, rest, _ := strings.Cut(e.configuration(t, "", startUpstream(t, nil), []*site{r.site}), "route_config: {")
	table, rest, found := strings.Cut(rest, ",\n    http_filters: ")
	if !found {
		t.Fatalf("the configuration has no routes: %s", rest)
	}
	r.table = table
	r.write(t, settings)
	e.runWith(t, head+"rds: {route_config_name: routed, config_source: {resource_api_version: V3, path_config_source: {path: "+
		r.folder+"/routes.yaml, watched_directory: {path: "+r.folder+"}}}},\n    http_filters: "+rest)
	return r
}

// routing.write replaces the settings of the route. If they have no store, the route counts in
// memory.
func (r *routing) write(t testing.TB, settings string) {
	t.Helper()
	if !strings.Contains(settings, "store:") {
		settings += "store: {type: memory}\n"
	}
	r.version++
	text := fmt.Sprintf(`{version_info: "%d", resources: [{"@type": type.googleapis.com/envoy.config.route.v3.RouteConfiguration, name: routed, %s]}`,
		r.version, strings.Replace(r.table, routeOf("/", r.settings), routeOf("/", settings), 1))
	newRenamedFile(t, filepath.Join(r.folder, "routes.yaml")).edit(text)
}

// countLoaded returns how many versions of the routes Envoy has loaded.
func (r *routing) countLoaded() int {
	return r.envoy.stat("http." + r.name + ".rds.routed.update_success")
}
