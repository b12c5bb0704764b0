// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// routeOf returns a route for paths below a prefix. The module has the given settings on this
// route.
func routeOf(prefix, settings string) string {
	return `{match: {prefix: ` + prefix + `}, route: {cluster: upstream}, typed_per_filter_config: {penstock: {
    "@type": type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute,
    dynamic_module_config: {name: penstock, do_not_close: true},
    filter_config: {"@type": type.googleapis.com/google.protobuf.StringValue, value: ` + strconv.Quote(settings) + `}}}},`
}

// routeWithout returns a route for which the module is disabled.
func routeWithout(prefix string) string {
	return `{match: {prefix: ` + prefix + `}, route: {cluster: upstream}, typed_per_filter_config: {penstock: {
    "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}},`
}

// routeOfGuide returns the route of docs/guides/envoy.md that has its own settings, with the given
// policy and Redis.
func routeOfGuide(t *testing.T, policy string, redis *redistest.Server) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "batch.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("/etc/envoy/batch.yaml", file, "redis://localhost:6379", redis.URL(), "50ms", "5s").
		Replace(guideBlock(t, "- match: { prefix: /batch }")) + ","
}

// TestModuleRoutes tests that a route can have a policy other than the filter's, and that it can
// share the filter's counters, have its own counters, or have no limits. Envoy must not warn that a
// field is deprecated.
func TestModuleRoutes(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	one := strings.Replace(threeADay, "3/31d", "1/31d", 1)
	s := &site{filter: moduleFilter(threeADay + inRedis(redis)), routes: routeOf("/one", strings.Replace(one, "shop", "one", 1)+inRedis(redis)) +
		routeOf("/same", threeADay+inRedis(redis)) + routeOf("/apart", threeADay+"store: {type: memory}\n") + routeWithout("/free") +
		routeOfGuide(t, strings.Replace(one, "shop", "batch", 1), redis)}
	e := startEnvoyIn(t, []string{modulePath(t)}, "", nil, s)
	for _, c := range []struct {
		path, limit string
		want        []int
	}{
		{"/one", "1", []int{200, 429}},
		{"/batch", "1", []int{200, 429}},
		{"/same", "3", []int{200, 200}},
		{"/", "3", []int{200, 429}}, // two units of this counter are used up
		{"/same", "3", []int{429}},
		{"/apart", "3", []int{200, 200, 200, 429}},
		{"/free", "", []int{200, 200, 200, 200, 200}},
	} {
		for n, want := range c.want {
			if a := s.get(t, c.path); a.status != want || a.header.Get("X-RateLimit-Limit") != c.limit {
				t.Errorf("%s, request %d: status %d, %v, want %d with the limit %q", c.path, n+1, a.status, a.header, want, c.limit)
			}
		}
	}
	if log := e.log.String(); strings.Contains(log, "Deprecated field") {
		t.Errorf("Envoy warns: %s", log)
	}
}

// TestModuleRejectsRoutes tests that Envoy does not start if the configuration of a route is wrong,
// and that its log names the problem.
func TestModuleRejectsRoutes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{threeADay: "store is missing", threeADay + "store: {type: memory}\nadmin: {listen: \"127.0.0.1:1\"}": "are of the whole process", "polcy: x\nstore: {type: memory}": "polcy"} {
		text := startRejected(t, &site{filter: moduleFilter(threeADay), routes: routeOf("/one", settings)})
		if !strings.Contains(text, want) || !strings.Contains(text, "the configuration of a route is rejected") {
			t.Errorf("%q: the log lacks %q:\n%s", settings, want, text)
		}
	}
}

// TestModuleServesOnRoutesWithBodies tests that the policy of a route applies to requests with a
// body that wait for Redis.
func TestModuleServesOnRoutesWithBodies(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	s := &site{filter: moduleFilter(threeADay), routes: routeOf("/one", strings.Replace(threeADay, "3/31d", "1/31d", 1)+inRedis(redis))}
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, s)
	for n, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		response, err := http.Post("http://"+s.address+"/one", "text/plain", strings.NewReader(strings.Repeat("x", 1<<20)))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("request %d: status %d, want %d", n+1, response.StatusCode, want)
		}
	}
}
