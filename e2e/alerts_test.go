// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// hasty shortens the spans in the alert rules, so that alerts which take minutes fire within
// seconds.
var hasty = strings.NewReplacer("for: 2m", "for: 1s", "for: 1m", "for: 1s", "for: 10s", "for: 1s", "[15m]", "[15s]", "[5m]", "[15s]", "[1m]", "[15s]")

// monitor.firing returns the names of the alerts that fire.
func (m *monitor) firing() (names []string) {
	m.t.Helper()
	var data struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	m.read("/api/v1/alerts", &data)
	for _, alert := range data.Alerts {
		if alert.State == "firing" {
			names = append(names, alert.Labels["alertname"])
		}
	}
	return names
}

// awaitAlerts calls load() repeatedly until each of the wanted alerts has fired.
func (m *monitor) awaitAlerts(load func(), wanted ...string) {
	m.t.Helper()
	defer func() {
		if len(wanted) > 0 {
			m.t.Logf("these have not fired: %q", wanted)
		}
	}()
	eventually.Until(m.t, 2*patience, "the alerts fire", func() bool {
		load()
		fired := m.firing()
		wanted = slices.DeleteFunc(wanted, func(name string) bool { return slices.Contains(fired, name) })
		pass(scrapePause)
		return len(wanted) == 0
	})
}

// sendBadConfiguration sends Caddy a configuration that it does not accept.
func (p *process) sendBadConfiguration() {
	p.t.Helper()
	request, err := http.NewRequest(http.MethodPatch, "http://"+p.admin+"/config/apps/penstock/store", strings.NewReader(`{"type":"none"}`))
	if err != nil {
		p.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		p.t.Fatal("Caddy accepted a store that does not exist")
	}
}

// alertNames returns the names of the alert rules.
func alertNames(t *testing.T) (all []string) {
	t.Helper()
	for _, found := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllStringSubmatch(readFile(t, deployed+"prometheus/penstock.rules.yaml"), -1) {
		all = append(all, found[1])
	}
	return all
}

// startAlerting is like startWatched, but with another policy. Its Caddy accepts tokens of a
// signer, and reports denials to a file on a full disk.
func startAlerting(t *testing.T, redis *redistest.Server, keys *keysFile, trusted *signer) *process {
	t.Helper()
	file, set := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml")), filepath.Join(t.TempDir(), "keys.json")
	writeFile(t, set, `{"keys":[`+trusted.JWK+`]}`)
	file.edit(strings.Replace(policyWith(keys, "true"), "identify: [", "events: {denied: all}\nidentify: [{jwt: {jwks_file: "+set+"}}, ", 1))
	return startCaddy(t, strings.Replace(watchedCaddyfile, "directory\n", "directory\n\t\tevents_to /dev/full\n", 1), "PENSTOCK_REDIS="+redis.URL(),
		"POLICY="+file.path)
}

// provokedAlerts returns the alerts that TestAlertsFire provokes while Redis runs, and those that
// it provokes while Redis is down. It fails the test unless these are exactly the alerts of the
// alert rules.
func provokedAlerts(t *testing.T) (withRedis, without []string) {
	t.Helper()
	withRedis = []string{"PenstockRedisClusterNotOK", "PenstockPolicyRefused", "PenstockPoliciesDiffer", "PenstockKeysRefused",
		"PenstockCaddyConfigRefused", "PenstockRedisMemory", "PenstockRedisClients", "PenstockRedisRejectedConnections", "PenstockRedisEvictedKeys",
		"PenstockCheckSlowP95", "PenstockCheckSlowP99", "PenstockUncheckedCredentials", "PenstockDirectoryOverloads"}
	without = []string{"PenstockRedisDown", "PenstockBreakerOpen", "PenstockDegraded", "PenstockDirectoryUndirected", "PenstockNodeDown",
		"PenstockEventsDropped"}
	all := slices.Sorted(slices.Values(alertNames(t)))
	if both := slices.Sorted(slices.Values(slices.Concat(withRedis, without))); !slices.Equal(both, all) {
		t.Errorf("%q are provoked, and the alerts are %q", both, all)
	}
	return withRedis, without
}

// TestAlertsFire provokes the condition of every alert rule on real servers, and tests that every
// alert fires.
func TestAlertsFire(t *testing.T) {
	t.Parallel()
	withRedis, without := provokedAlerts(t)
	keys := newKeysFile(t, map[string]string{"ann": "", "bob": ""})
	redis, alone := redistest.StartTCP(t), redistest.StartAlone(t)
	command := func(server *redistest.Server, words ...any) {
		t.Helper()
		if err := server.Client().Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	command(alone, "cluster", "addslotsrange", 0, 16383)
	eventually.Until(t, patience, "the cluster is ok", func() bool {
		return strings.Contains(alone.Client().ClusterInfo(t.Context()).Val(), "cluster_state:ok")
	})
	trusted, random := newP384(t, "ec"), mathrand.NewChaCha8([32]byte{})
	caddy := startAlerting(t, redis, keys, trusted)
	bridges := []*watchedBridge{
		startWatchedBridge(t, "name: shop\nrules: [{name: api, limit: 3/1h}]\n", "--redis", alone.URL(), "--redis-mode", "cluster"),
		startWatchedBridge(t, "name: shop\nrules: [{name: api, limit: 3/1h}]\n"),
	}
	m := startPrometheus(t, hasty, []string{caddy.admin}, []string{bridges[0].address, bridges[1].address})
	load := func() { caddy.get("/wide") }
	eventually.Until(t, 2*patience, "the nodes are scraped, and no alert fires", func() bool {
		load()
		pass(scrapePause)
		fired := slices.DeleteFunc(m.firing(), func(name string) bool { return strings.HasPrefix(name, "PenstockCheckSlow") }) // the machine may be busy
		return len(fired) == 0 && m.answers("count(penstock_redis_up) == 2 and count(penstock_node_info) == 3")
	})

	// Redis hangs for a moment. A client waits one second for its record and is then denied.
	redis.Pause()
	late := caddy.ask(t.Context(), http.MethodGet, "/wide", "X-Api-Key", keyOf("bob"))
	redis.Resume()
	if late.status != http.StatusServiceUnavailable {
		t.Errorf("a client whose record was not read in time: status %d, want 503", late.status)
	}
	command(alone, "cluster", "delslots", 5)
	bridges[0].policy.edit("name: shop\nrules: [{name: api, limit: 3/1hour}]\n")
	bridges[1].policy.edit("name: shop\nrules: [{name: api, limit: 4/1h}]\n")
	keys.write("no keys")
	caddy.sendBadConfiguration()
	clients, err := redis.Client().Do(t.Context(), "client", "list").Text()
	if err != nil {
		t.Fatal(err)
	}
	command(redis, "config", "set", "maxmemory-policy", "allkeys-random", "maxmemory", "1mb", "maxclients", strings.Count(clients, "\n"))
	m.awaitAlerts(func() {
		refused, err := net.Dial("tcp", redis.Addr)
		if err != nil {
			t.Fatal(err)
		}
		refused.Close()
		_ = redis.Client().Set(t.Context(), "evicted", "by the next", time.Minute)
		for range 40 { // this is more than one address may have verified
			caddy.ask(t.Context(), http.MethodGet, "/wide", "Authorization", "Bearer "+forgeries[0].token(random))
		}
		_ = redis.Client().Do(t.Context(), "client", "pause", 30, "all")
		load()
	}, withRedis...)

	redis.Kill()
	bridges[1].kill()
	m.awaitAlerts(func() {
		caddy.ask(t.Context(), http.MethodGet, "/api", "X-Api-Key", keyOf("ann")) // ann's record was not read yet
		load()
	}, without...)
}
