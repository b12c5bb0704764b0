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

// startModule runs Envoy with the native module and one site for each configuration.
func startModule(t testing.TB, library string, upstream http.Handler, settings ...string) (*envoy, []*site) {
	t.Helper()
	var sites []*site
	for _, text := range settings {
		sites = append(sites, &site{filter: moduleFilter(text)})
	}
	return startEnvoyIn(t, []string{searchPath + filepath.Dir(library)}, "", upstream, sites...), sites
}

// searchPath begins the environment variable that names the folder of Envoy's modules.
const searchPath = "ENVOY_DYNAMIC_MODULES_SEARCH_PATH="

// modulePath returns that variable for the module that this run of the tests builds.
func modulePath(t testing.TB) string { return searchPath + filepath.Dir(module(t)) }

// moduleFilter returns Envoy's configuration of the module, in YAML, with the given settings.
func moduleFilter(settings string) string {
	return `{name: penstock, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilter,
        dynamic_module_config: {name: penstock, do_not_close: true}, filter_name: penstock,
        filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: ` + strconv.Quote(settings) + `}}}`
}

// inRedis returns the lines of a configuration with a store in Redis and a long deadline, because
// the machine is busy with other tests.
func inRedis(redis *redistest.Server) string {
	return "store: {type: redis, url: \"" + redis.URL() + "\", timeout: 5s}\n"
}

const threeADay = "name: shop\non_error: deny\nrules: [{name: all, limit: 3/31d}]\n"

// TestModule tests that the native module admits as many requests as the limit and denies all
// others, both in memory and with Redis. The responses have the same header fields as the responses
// of the other fronts.
func TestModule(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	_, sites := startModule(t, module(t), nil, threeADay, threeADay+inRedis(redis))
	for i, s := range sites {
		for n, want := range []int{200, 200, 200, 429, 429} {
			a := s.get(t, "/")
			remaining := strconv.Itoa(max(0, 2-n))
			if a.status != want || a.header.Get("X-RateLimit-Limit") != "3" || a.header.Get("X-RateLimit-Remaining") != remaining ||
				!strings.HasPrefix(a.header.Get("RateLimit"), `"all";r=`+remaining+";t=") ||
				a.header.Get("RateLimit-Policy") != `"all";q=3;w=2678400` {
				t.Errorf("site %d, request %d: %d, %v, want %d with the fields", i, n+1, a.status, a.header, want)
			}
			if denied := want == 429; denied != (a.header.Get("Retry-After") != "") ||
				denied != strings.Contains(a.body, `"violated-policies":["all"]`) {
				t.Errorf("site %d, request %d: %v, %s", i, n+1, a.header, a.body)
			}
		}
	}
}

// TestModuleHoldsBodies tests that a request with a body waits for the store's answer, and that no
// part of the request reaches the upstream before the decision.
func TestModuleHoldsBodies(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	seen := make(chan int, 16)
	upstream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := 0
		for buffer := make([]byte, 4096); ; {
			k, err := r.Body.Read(buffer)
			if n += k; err != nil {
				break
			}
		}
		seen <- n
	})
	_, sites := startModule(t, module(t), upstream, threeADay+inRedis(redis))
	const size = 3 << 20
	for n, want := range []int{200, 200, 200, 429, 429} {
		response, err := http.Post("http://"+sites[0].address+"/", "text/plain", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", n+1, response.StatusCode, want)
		}
	}
	for range 3 {
		if n := <-seen; n != size {
			t.Errorf("the upstream got %d bytes of %d", n, size)
		}
	}
	select {
	case <-seen:
		t.Error("a denied request reached the upstream")
	default:
	}
}

// TestModuleNeverOver tests that two Envoys with the module and a Caddy, which share one policy and
// one Redis, together admit exactly the limit under concurrent load. One of the Envoys has two
// configurations of the module. In the other Envoy, Go's memory limit is always exceeded, so that
// Go collects garbage continually.
func TestModuleNeverOver(t *testing.T) {
	t.Parallel()
	const policy = "name: shop\non_error: deny\nrules: [{name: all, per: [], limit: 1000/31d}]\n"
	const each = 1_500
	redis := redistest.Start(t)
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(policy)
	one := &site{filter: moduleFilter("policy: " + file.path + "\n" + inRedis(redis)), routes: routeOf("/same", policy+inRedis(redis))}
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, one)
	two := &site{filter: moduleFilter(policy + inRedis(redis))}
	full := startEnvoyIn(t, []string{modulePath(t), "GOMEMLIMIT=1MiB", "GODEBUG=gctrace=1"}, "", nil, two)
	p := startCaddy(t, editedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
	var got tally
	groups := []*sync.WaitGroup{startLoadOn(one.address, 32, &got, times(each)), startLoadOn(one.address+"/same", 32, &got, times(each)),
		startLoadOn(two.address, 32, &got, times(each)), startLoadOn(p.address, 16, &got, times(each))}
	for _, group := range groups {
		group.Wait()
	}
	admitted, denied, broken := got.admitted.Load(), got.refused.Load(), got.broken.Load()
	if admitted != limit || denied != 4*each-limit || broken != 0 || got.serverErrors.Load() != 0 {
		t.Errorf("admitted %d, denied %d, broken %d, errors %d: want exactly %d of %d", admitted, denied, broken,
			got.serverErrors.Load(), limit, 4*each)
	}
	if n := full.collections(); n < 50 {
		t.Errorf("garbage was collected %d times, so the limit of memory was not exceeded", n)
	}
}

// TestModuleLeases tests that with leases, most requests are decided without a call to Redis, and
// that exactly the limit is admitted.
func TestModuleLeases(t *testing.T) {
	t.Parallel()
	const total = 4_000
	redis := redistest.Start(t)
	_, sites := startModule(t, module(t), nil,
		"name: shop\nlease: auto\non_error: deny\nrules: [{name: all, per: [], limit: 3000/31d}]\n"+inRedis(redis))
	before := redis.Calls("evalsha")
	var got tally
	startLoadOn(sites[0].address, 64, &got, times(total)).Wait()
	calls := redis.Calls("evalsha") - before
	t.Logf("%d requests, %d calls, %d admitted", total, calls, got.admitted.Load())
	// The process may still hold units when Redis already denies requests. It returns these units,
	// and they can be used.
	eventually.Until(t, patience, "the limit is used up", func() bool {
		startLoadOn(sites[0].address, 1, &got, times(20)).Wait()
		return got.admitted.Load() >= 3_000
	})
	startLoadOn(sites[0].address, 16, &got, times(200)).Wait()
	if got.admitted.Load() != 3_000 || got.broken.Load() != 0 {
		t.Errorf("admitted %d, broken %d, want exactly 3000", got.admitted.Load(), got.broken.Load())
	}
	if calls > total/2 {
		t.Errorf("%d calls of Redis for %d requests", calls, total)
	}
}

// TestModuleRejectsConfigurations tests that Envoy does not start with an invalid configuration of
// the module, and that its log names the mistake.
func TestModuleRejectsConfigurations(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"polcy: x.yaml": "polcy", "policy: /nowhere/policy.yaml": "/nowhere/policy.yaml", "name: shop": "policy is missing", "": "is empty",
		"policy: x.yaml\nstore: {type: redis}":            "url is missing",
		threeADay + "store: {type: memory, timeout: 10s}": "takes only counters_max and bytes_max",
	} {
		text := envoyRejects(t, settings)
		if !strings.Contains(text, want) {
			t.Errorf("%q: the log lacks %q:\n%s", settings, want, text)
		}
	}
}

// envoyRejects returns the log of an Envoy that does not start because of the module's settings.
func envoyRejects(t testing.TB, settings string) string {
	t.Helper()
	return startRejected(t, &site{filter: moduleFilter(settings)})
}

// startRejected returns the log of an Envoy that does not start because of the module's settings in
// a site.
func startRejected(t testing.TB, s *site) string {
	t.Helper()
	e := &envoy{admin: "127.0.0.1:0"}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	overwritten(t, file).edit(e.configuration(t, "", "127.0.0.1:1", []*site{s}))
	command := envoyCommand(t, file, "--mode", "validate")
	command.Env = append(command.Environ(), modulePath(t))
	out, err := command.CombinedOutput()
	if err == nil {
		t.Errorf("%s, %s is accepted", s.filter, s.routes)
	}
	return string(out)
}
