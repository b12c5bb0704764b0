// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// regionalPolicy gives 500 units to us, 300 to eu and 200 to ap.
const regionalPolicy = `name: shop
on_error: deny
regions: {us: 50, eu: 30, ap: 20}
across: share
rules: [{name: all, per: [], limit: 1000/31d}]
`

// regionalCaddyfile returns the Caddyfile of a region.
func regionalCaddyfile(region string) string {
	return strings.Replace(editedCaddyfile, "	penstock {\n", "	penstock {\n		region "+region+"\n", 1)
}

// startRegionalCaddy runs a Caddy in a region. It writes the policy to a file.
func startRegionalCaddy(t *testing.T, region, policy string, redis *redistest.Server) *process {
	t.Helper()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(policy)
	return startCaddy(t, regionalCaddyfile(region), "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
}

// addressRoute is a route that makes Envoy send the address of the client to the rate limit
// service.
const addressRoute = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [{actions: [{remote_address: {}}]}]}},`

// TestRegionsAddUp tests three regions, each with its own Redis, that share one limit. The limit is
// enforced by Caddy in the first region, by Envoy's filter and the rate limit service in the
// second, and by the native module in the third. Each region gets more requests than its part of
// the limit, and admits exactly its part.
func TestRegionsAddUp(t *testing.T) {
	t.Parallel()
	const each = 700 // requests to each front
	filter := &site{set: "on_error: deny\ndeadline: 10s"}
	service := &site{filter: garbageRLS, routes: addressRoute}
	redis := map[string]*redistest.Server{}
	for _, region := range []string{"us", "eu", "ap"} {
		redis[region] = redistest.Start(t)
	}
	library := module(t)
	var starting sync.WaitGroup
	starting.Go(func() { useEnvoy(t, nil, filter, service) })
	_, native := startModule(t, library, nil, regionalPolicy+"region: ap\n"+inRedis(redis["ap"]))
	caddy := startRegionalCaddy(t, "us", regionalPolicy, redis["us"])
	starting.Wait()
	if t.Failed() {
		return
	}
	filter.startBridge(t, regionalPolicy, "--region", "eu", "--redis", redis["eu"].URL(), "--redis-timeout", "5s",
		"--rls-listen", "unix:"+service.grpc)
	got := map[string]*tally{"us": {}, "eu": {}, "ap": {}}
	eventually.Until(t, patience, "Envoy has reached the service", func() bool {
		got["eu"].ask(http.DefaultClient, "http://"+service.address+"/")
		return got["eu"].admitted.Load() > 0
	})
	var groups []*sync.WaitGroup
	for region, addresses := range map[string][]string{"us": {caddy.address}, "eu": {filter.address, service.address}, "ap": {native[0].address}} {
		for _, address := range addresses {
			groups = append(groups, startLoadOn(address, 8, got[region], times(each)))
		}
	}
	for _, group := range groups {
		group.Wait()
	}
	for region, want := range map[string]int64{"us": 500, "eu": 300, "ap": 200} {
		g := got[region]
		t.Logf("%s: %d admitted, %d denied, %d answered by on_error, %d broken", region, g.admitted.Load(), g.refused.Load(),
			g.serverErrors.Load(), g.broken.Load())
		if g.admitted.Load() != want {
			t.Errorf("%s: %d admitted, want exactly %d: %v", region, g.admitted.Load(), want, g.other)
		}
	}
	for region, address := range map[string]string{"us": caddy.address, "eu": filter.address, "ap": native[0].address} {
		a, err := ask(http.DefaultClient, "http://"+address+"/")
		if want := map[string]string{"us": "500", "eu": "300", "ap": "200"}[region]; err != nil || a.status != http.StatusTooManyRequests ||
			!strings.Contains(a.header.Get("RateLimit-Policy")+a.header.Get("X-RateLimit-Limit"), want) && !hiddenFields(&a) {
			t.Errorf("%s: %d, %v, %v, want 429 with the limit %s", region, a.status, a.header, err, want)
		}
	}
}

// hiddenFields reports whether the answer has no X-RateLimit-Limit. The fields of a rule that
// counts all clients together are not sent.
func hiddenFields(a *answer) bool { return a.header.Get("X-RateLimit-Limit") == "" }

// TestRegionsDivideEveryKind tests that the regions divide limits of all algorithms, bursts, and
// limits of single clients. The parts of all regions add up to the limit. The header fields of a
// response show the part of its region.
func TestRegionsDivideEveryKind(t *testing.T) {
	t.Parallel()
	const policy = `name: shop
on_error: deny
regions: {ap: 20, eu: 30, us: 50}
across: share
identify: [{api_key: {keys_file: keys.toml, on_invalid: deny}}, {header: {name: X-User, unverified: true}}]
rules:
  - {name: fixed, match: {path: /fixed}, limit: 10/31d fixed_window, tiers: {business: 20/31d fixed_window}}
  - {name: sliding, match: {path: /sliding}, limit: 11/31d}
  - {name: log, match: {path: /log}, limit: 12/31d sliding_log}
  - {name: bucket, match: {path: /bucket}, limit: 13/31d burst 17}
  - {name: month, match: {path: /month}, limit: 14/year}
`
	const key = "a-key-of-thirty-two-characters-1"
	hash := sha256.Sum256([]byte(key))
	keys := "[[keys]]\nid = \"plain\"\nhash = \"sha256:" + hex.EncodeToString(hash[:]) +
		"\"\nlimits = {fixed = [\"7/31d fixed_window\"], month = [\"2/year\"]}\n"
	var addresses []string
	names := []string{"ap", "eu", "us"}
	for _, region := range names {
		file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
		file.edit(policy)
		if err := os.WriteFile(filepath.Join(filepath.Dir(file.path), "keys.toml"), []byte(keys), 0o600); err != nil {
			t.Fatal(err)
		}
		p := startCaddy(t, regionalCaddyfile(region), "PENSTOCK_REDIS="+redistest.Start(t).URL(), "POLICY="+file.path)
		addresses = append(addresses, p.address)
	}
	for _, c := range []struct {
		path  string
		field []string
		want  [3]int // of ap, eu and us
	}{
		{"/fixed", []string{"X-User", "ann"}, [3]int{2, 3, 5}},
		{"/sliding", []string{"X-User", "ann"}, [3]int{2, 3, 6}}, // 2.2, 3.3 and 5.5
		{"/log", []string{"X-User", "ann"}, [3]int{2, 4, 6}},     // 2.4, 3.6 and 6
		{"/bucket", []string{"X-User", "ann"}, [3]int{3, 5, 9}},  // 3.4, 5.1 and 8.5 of 17
		{"/month", []string{"X-User", "ann"}, [3]int{3, 4, 7}},   // 2.8, 4.2 and 7
		{"/fixed", []string{"X-API-Key", key}, [3]int{1, 2, 4}},  // 1.4, 2.1 and 3.5 of the key's own 7
		{"/month", []string{"X-API-Key", key}, [3]int{0, 1, 1}},  // 0.4, 0.6 and 1 of the key's own 2
	} {
		for i, address := range addresses {
			admitted := 0
			for n := range c.want[i] + 3 {
				a, err := ask(http.DefaultClient, "http://"+address+c.path, c.field...)
				if err != nil {
					t.Fatal(err)
				}
				if a.status == http.StatusOK {
					admitted++
				} else if a.status != http.StatusTooManyRequests {
					t.Fatalf("%s in %s: status %d", c.path, names[i], a.status)
				}
				if limit := a.header.Get("X-RateLimit-Limit"); n == 0 && c.want[i] > 0 && limit != strconv.Itoa(c.want[i]) {
					t.Errorf("%s %s in %s: the limit is shown as %q", c.path, c.field[0], names[i], limit)
				}
			}
			if admitted != c.want[i] {
				t.Errorf("%s %s in %s: %d admitted, want %d", c.path, c.field[0], names[i], admitted, c.want[i])
			}
		}
	}
}

// TestRegionsAreNamed tests that a bridge rejects a policy with regions unless --region names one
// of them, and that "penstock validate" checks the limits of every region.
func TestRegionsAreNamed(t *testing.T) {
	t.Parallel()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(regionalPolicy)
	penstock(t, "bridge", "--policy", file.path, "--listen", "unix:"+socket(t)).mustFail(t, "regions",
		"this process is in none of them", "ap, eu, us")
	penstock(t, "bridge", "--policy", file.path, "--region", "mars", "--listen", "unix:"+socket(t)).mustFail(t, `regions: "mars"`)
	penstock(t, "validate", file.path).mustSucceed(t)
	penstock(t, "explain", "--policy", file.path).mustFail(t, "--region ap or eu or us")
	if said := penstock(t, "explain", "--policy", file.path, "--region", "eu").mustSucceed(t); !strings.Contains(said, "300") {
		t.Errorf("explain in eu prints\n%s", said)
	}
	file.edit(strings.Replace(regionalPolicy, "1000/31d", "2/31d", 1))
	checkRejected(t, file.path, "has no unit for region ap")
	file.edit(strings.Replace(regionalPolicy, "1000/31d", "1000/31d, cost: 250", 1))
	checkRejected(t, file.path, "in region ap")
	file.edit(strings.Replace(regionalPolicy, "share", "home", 1))
	checkRejected(t, file.path, `across: "home": is not yet in this version`)
	file.edit(strings.Replace(regionalPolicy, "share", "gossip", 1))
	penstock(t, "validate", file.path).mustSucceed(t)
	file.edit(strings.NewReplacer("share", "gossip", "31d", "5s").Replace(regionalPolicy))
	checkRejected(t, file.path, "less than 6 times the 1s in which the regions tell each other")
}

// checkRejected checks that "penstock validate" rejects a policy and says why.
func checkRejected(t *testing.T, path, why string) {
	t.Helper()
	if r := penstock(t, "validate", path); r.status != 1 || !strings.Contains(r.out, why) {
		t.Errorf("validate ends with %d and prints %q, want %q", r.status, r.out, why)
	}
}
