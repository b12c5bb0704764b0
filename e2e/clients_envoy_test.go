// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// directedEnvoyPolicy has a rule with a low limit and a rule with leases.
const directedEnvoyPolicy = `name: shop
directory: true
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: api, match: {path: /api}, limit: 3/31d fixed_window, tiers: {gold: 100/31d fixed_window}}
  - {name: hot, match: {path: /hot}, limit: 1000000/31d fixed_window, lease: auto}
`

// headerRoute makes Envoy send the header FIELD, the client's address and the path to the rate
// limit service.
const headerRoute = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [
    {actions: [{request_headers: {header_name: FIELD, descriptor_key: FIELD}}, {remote_address: {}},
      {request_headers: {header_name: ":path", descriptor_key: path}}]}]}},`

// directedEnvoy is a site whose clients have records in a Redis of its own.
type directedEnvoy struct {
	*site
	bridge *bridge
	redis  *redistest.Server
	field  string // the header that names a client
	denied int    // the status of a client that is denied
}

// newDirectedEnvoy returns a site with the filter. If service is set, the site has Envoy's own
// filter and the rate limit service instead. The filter answers a denied client with the given
// status, and Envoy's own filter answers 429.
func newDirectedEnvoy(t *testing.T, service bool, field string, denied int) *directedEnvoy {
	t.Helper()
	d := &directedEnvoy{site: &site{set: relaxedDeadline}, redis: redistest.Start(t), field: field, denied: denied}
	if service {
		d.site, d.denied = &site{filter: builtInFilter, routes: strings.ReplaceAll(headerRoute, "FIELD", field)}, http.StatusTooManyRequests
	}
	return d
}

// directedEnvoy.start starts the bridge, and sends requests as the given client until the bridge
// decides them.
func (d *directedEnvoy) start(t *testing.T, policy, client string) {
	t.Helper()
	redis := []string{"--redis", d.redis.URL(), "--redis-timeout", "5s"}
	if d.grpc == "" {
		d.bridge = d.startBridge(t, policy, redis...)
		return
	}
	d.bridge = newBridge(t, policy, append(redis, "--rls-listen", "unix:"+d.grpc)...)
	d.bridge.listen = d.site.bridge
	d.bridge.run(t)
	eventually.Until(t, patience, "Envoy has reached the service", func() bool {
		return d.get(t, "/api", d.field, client).header.Get("X-RateLimit-Limit") != ""
	})
}

// TestDirectoryBehindEnvoy runs several stories. Each has a site of its own in one Envoy, with its
// own bridge and Redis.
func TestDirectoryBehindEnvoy(t *testing.T) {
	t.Parallel()
	stories := []struct {
		name    string
		service bool
		tell    func(*testing.T, *directedEnvoy)
	}{
		{"changes in the filter", false, changesHold},
		{"changes in the service", true, changesHold},
		{"leases", false, aBlockEndsLeases},
		{"outages", false, blocksOutliveRedisAndTheBridge},
		{"flood", false, aFloodAdmitsNoBlockedClient},
	}
	var sites []*site
	directed := make([]*directedEnvoy, len(stories))
	for i, story := range stories {
		directed[i] = newDirectedEnvoy(t, story.service, "x-user", http.StatusForbidden)
		sites = append(sites, directed[i].site)
	}
	useEnvoy(t, nil, sites...)
	for i, story := range stories {
		directed[i].start(t, directedEnvoyPolicy, "warm")
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			story.tell(t, directed[i])
		})
	}
}

// directedEnvoy.edit changes the record of a client with the command penstock client.
func (d *directedEnvoy) edit(t *testing.T, args ...string) {
	t.Helper()
	penstock(t, append(append([]string{"client"}, args...), "--reason", "a test", "--redis", d.redis.URL())...).mustSucceed(t)
}

// askOnNewConnection sends a request over a new connection. Any worker may receive it.
func (d *directedEnvoy) askOnNewConnection(path, user string) (answer, error) {
	return ask(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+d.address+path, d.field, user)
}

// status sends a request of a user, and returns the status of the answer.
func (d *directedEnvoy) status(t *testing.T, path, user string) int {
	t.Helper()
	a, err := d.askOnNewConnection(path, user)
	if err != nil {
		t.Fatal(err)
	}
	return a.status
}

// awaitStatus sends requests of a user until one of them gets the given status, and logs how long
// that takes. A remembered denial can delay the change by up to a second, and a busy machine can
// delay it by more. Then the method waits until the other workers answer with this status as well.
func (d *directedEnvoy) awaitStatus(t *testing.T, what, path, user string, status int) {
	t.Helper()
	began := time.Now()
	eventually.Until(t, patience, what, func() bool { return d.status(t, path, user) == status })
	t.Logf("%s after %v", what, time.Since(began))
	for range 20 { // whichever worker answers
		eventually.Until(t, patience, what+", for all workers", func() bool { return d.status(t, path, user) == status })
	}
}

// metric returns the first line of the bridge's metrics that begins with the given text.
func (d *directedEnvoy) metric(t *testing.T, name string) (line string) {
	t.Helper()
	a, err := ask(&http.Client{Transport: d.bridge.transport()}, "http://bridge/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for text := range strings.Lines(a.body) {
		if strings.HasPrefix(text, name) {
			return strings.TrimSpace(text)
		}
	}
	return ""
}

// changesHold checks that each change by a command soon takes effect behind Envoy. It changes
// blocks, limits of a client, a tier, an exemption, a grant, and the block of a network. It also
// blocks a client that has no limit, and a client whose denial is remembered.
func changesHold(t *testing.T, d *directedEnvoy) {
	var before []int
	for range 4 {
		before = append(before, d.status(t, "/api", "ann"))
	}
	if want := []int{200, 200, 200, 429}; !slices.Equal(before, want) {
		t.Fatalf("before any change: %v, want %v", before, want)
	}
	d.status(t, "/free", "bob")
	d.edit(t, "block", "header.x-user:bob", "--for", "1h")
	d.awaitStatus(t, "a blocked client is denied where it has no limit", "/free", "bob", d.denied)
	d.awaitStatus(t, "and where it has one", "/api", "bob", d.denied)
	d.edit(t, "unblock", "header.x-user:bob")
	d.awaitStatus(t, "a client that is no longer blocked is served", "/free", "bob", 200)

	d.awaitStatus(t, "a client over its limit is denied", "/api", "ann", 429)
	d.edit(t, "block", "header.x-user:ann")
	d.awaitStatus(t, "a client whose denial is remembered is blocked", "/api", "ann", d.denied)
	d.edit(t, "unblock", "header.x-user:ann")
	d.edit(t, "set-limit", "header.x-user:ann", "api", "10000/31d fixed_window")
	d.awaitStatus(t, "a client with a higher limit is served", "/api", "ann", 200)
	d.edit(t, "unset-limit", "header.x-user:ann")
	d.awaitStatus(t, "a client without its own limit is denied", "/api", "ann", 429)
	d.edit(t, "exempt", "header.x-user:ann")
	d.awaitStatus(t, "an exempt client is served", "/api", "ann", 200)
	d.edit(t, "set-tier", "header.x-user:cid", "gold")
	eventually.Until(t, patience, "a client of the tier gold has the tier's limit", func() bool {
		return d.get(t, "/api", "X-User", "cid").header.Get("X-RateLimit-Limit") == "100"
	})
	grantsHold(t, d)
	d.edit(t, "block", "ip:127.0.0.0/8")
	d.awaitStatus(t, "every client of a blocked network is denied", "/free", "dan", d.denied)
	d.edit(t, "unblock", "ip:127.0.0.0/8")
	d.awaitStatus(t, "and is served afterwards", "/free", "dan", 200)
	for _, name := range []string{`penstock_directory_lookups_total{result="hit"}`, `penstock_directory_reads_total{result="answered"}`,
		"penstock_directory_clients", "penstock_directory_overloads_total", "penstock_directory_bad_records_total"} {
		if d.metric(t, name) == "" {
			t.Errorf("the metrics lack %s", name)
		}
	}
}

// grantsHold checks that a client that has used up its limit is admitted for exactly the units of a
// grant.
func grantsHold(t *testing.T, d *directedEnvoy) {
	t.Helper()
	admitted := func(n int) (ok int) {
		for range n {
			if d.status(t, "/api", "gus") == 200 {
				ok++
			}
		}
		return ok
	}
	if got := admitted(5); got != 3 {
		t.Errorf("%d admitted before the grant, want 3", got)
	}
	d.edit(t, "grant", "header.x-user:gus", "api", "5")
	began, total := time.Now(), 0
	eventually.Until(t, patience, "a client with a grant is served", func() bool {
		total += admitted(1)
		return total > 0
	})
	t.Logf("a client with a grant is served after %v", time.Since(began))
	eventually.Until(t, patience, "the grant is used up, by whichever worker", func() bool {
		total += admitted(1)
		return total >= 5
	})
	if total += admitted(20); total != 5 {
		t.Errorf("%d admitted by a grant of 5", total)
	}
}

// aBlockEndsLeases checks a client that the filter admits from leased units. After the client is
// blocked, it is soon denied, and stays denied.
func aBlockEndsLeases(t *testing.T, d *directedEnvoy) {
	var admitted, blocked atomic.Int64
	var ended atomic.Bool
	var load sync.WaitGroup
	for range 4 {
		client := &http.Client{Transport: new(http.Transport)}
		load.Go(func() {
			for !ended.Load() {
				switch a, err := ask(client, "http://"+d.address+"/hot", "X-User", "hot"); {
				case err != nil:
					t.Error(err)
					return
				case a.status == http.StatusOK:
					admitted.Add(1)
				case a.status == http.StatusForbidden:
					blocked.Add(1)
				}
			}
		})
	}
	defer load.Wait()
	defer ended.Store(true)
	eventually.Until(t, patience, "the filter admits from leased units", func() bool { return d.envoy.counter("penstock.leased") > 100 })
	d.edit(t, "block", "header.x-user:hot")
	began := time.Now()
	eventually.Until(t, patience, "the client is denied", func() bool { return blocked.Load() > 0 })
	t.Logf("the first denial after %v", time.Since(began))
	eventually.Until(t, patience, "no worker admits it", func() bool {
		passed, denied := admitted.Load(), blocked.Load()
		eventually.Until(t, patience, "requests are denied", func() bool { return blocked.Load() > denied+200 })
		return admitted.Load() == passed
	})
	t.Logf("200 denials without an admission after %v", time.Since(began))
}

// blocksOutliveRedisAndTheBridge checks that the records in the bridge stay in force while Redis is
// down, and that the records in the filter stay in force while the bridge is down. New clients are
// served.
func blocksOutliveRedisAndTheBridge(t *testing.T, d *directedEnvoy) {
	d.edit(t, "block", "header.x-user:bob")
	d.awaitStatus(t, "a blocked client is denied", "/free", "bob", 403)
	d.redis.Kill()
	for _, c := range []struct {
		user string
		want int
	}{{"bob", 403}, {"new", 200}} {
		for range 3 {
			if got := d.status(t, "/api", c.user); got != c.want {
				t.Errorf("%s without Redis: status %d, want %d", c.user, got, c.want)
			}
		}
	}
	if line := d.metric(t, "penstock_directory_undirected_total"); strings.HasSuffix(line, " 0") || line == "" {
		t.Errorf("without Redis: %q", line)
	}
	d.awaitStatus(t, "every worker knows the blocked client", "/free", "bob", 403)
	d.bridge.kill()
	if got := d.status(t, "/free", "bob"); got != 403 {
		t.Errorf("bob without the bridge: status %d, want 403", got)
	}
	if got := d.status(t, "/free", "newer"); got != 200 {
		t.Errorf("a new client without the bridge: status %d, want 200", got)
	}
}

// aFloodAdmitsNoBlockedClient checks that blocked clients are denied while thousands of made-up
// clients send requests. Neither a worker nor the bridge has seen the blocked clients before.
func aFloodAdmitsNoBlockedClient(t *testing.T, d *directedEnvoy) {
	const connections, each, blocked = 20, 150, 20
	d.bridge.policy.edit(directedEnvoyPolicy + "on_error: deny\n")
	for i := range blocked {
		d.edit(t, "block", fmt.Sprintf("header.x-user:blocked-%d", i))
	}
	var group sync.WaitGroup
	for c := range connections {
		client := &http.Client{Transport: new(http.Transport)}
		group.Go(func() {
			for i := range each {
				user, want := fmt.Sprintf("made-up-%d-%d", c, i), http.StatusOK
				if i == each/2 {
					user, want = fmt.Sprintf("blocked-%d", c%blocked), http.StatusForbidden
				}
				a, err := ask(client, "http://"+d.address+"/api", "X-User", user)
				if err != nil || a.status != want && a.status != http.StatusServiceUnavailable {
					t.Errorf("%s: status %d, %v", user, a.status, err)
				}
			}
		})
	}
	group.Wait()
	if line := d.metric(t, "penstock_directory_undirected_total"); line != "penstock_directory_undirected_total 0" {
		t.Errorf("requests were decided without records: %q", line)
	}
}

// TestABridgeThatNeedsADirectory tests that a bridge that counts in memory rejects a policy that
// needs a directory, and names the remedy.
func TestABridgeThatNeedsADirectory(t *testing.T) {
	t.Parallel()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(directedEnvoyPolicy)
	for _, front := range []string{"caddy", "envoy", "rls"} {
		penstock(t, "validate", "--front", front, file.path).mustSucceed(t)
	}
	listen := "unix:" + socket(t)
	penstock(t, "bridge", "--policy", file.path, "--listen", listen).mustFail(t, "write --redis redis://localhost:6379")
	penstock(t, "bridge", "--policy", file.path, "--listen", listen, "--clients-max", "5").mustFail(t, "--clients-max is for the directory")
}
