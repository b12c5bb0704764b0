// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// sharedCaddyfile configures a Caddy that counts on several Redis servers.
const sharedCaddyfile = `{
	admin ADMIN
	penstock {
		store redis {
			mode {env.MODE}
			addrs ADDRS
			timeout 5s
		}
		on_error deny
		policy {env.POLICY}
	}
}
:SITE {
	penstock
	respond "ok"
}
`

// fourEach holds a rule that limits each client to four requests to /each.
const fourEach = "rules:\n- {name: each, match: {path: /each}, per: [\"header:X-Client\"], unverified: true, limit: 4/31d}\n"

// askInTurn sends requests of one client for /each to the addresses in turn. It fails the test
// unless the answers have the given statuses.
func askInTurn(t testing.TB, addresses []string, client int, statuses ...int) {
	t.Helper()
	for n, want := range statuses {
		address := addresses[n%len(addresses)]
		a, err := ask(http.DefaultClient, "http://"+address+"/each", "X-Client", "client-"+strconv.Itoa(client))
		if err != nil || a.status != want {
			t.Fatalf("client %d, request %d at %s: %d, %v, want %d", client, n+1, address, a.status, err, want)
		}
	}
}

// TestModuleCountsOnSeveralServers tests that the module uses all servers of a ring and of a
// cluster, and that it counts each client on the same server as Caddy. With leases, no more
// requests are admitted than the limit.
func TestModuleCountsOnSeveralServers(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	ring := []*redistest.Server{redistest.StartTCP(t), redistest.StartTCP(t), redistest.StartTCP(t)}
	var ringAddrs []string
	for _, s := range ring {
		ringAddrs = append(ringAddrs, s.Addr)
	}
	groups := []struct {
		mode    string
		addrs   []string
		servers []*redistest.Server
	}{{"cluster", cluster.Addrs(), cluster.Nodes[:3]}, {"ring", ringAddrs, ring}}
	const policy = "name: shop\non_error: deny\n" + fourEach +
		"- {name: leased, match: {path: /leased}, lease: auto, per: [], limit: 1000/31d}\n"
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(policy)
	var settings []string
	for _, g := range groups {
		settings = append(settings, "policy: "+file.path+"\nstore: {type: redis, mode: "+g.mode+", addrs: ["+
			strings.Join(g.addrs, ", ")+"], timeout: 5s}\n")
	}
	_, sites := startModule(t, module(t), nil, settings...)
	for i, g := range groups {
		caddy := startCaddy(t, strings.Replace(sharedCaddyfile, "ADDRS", strings.Join(g.addrs, " "), 1), "MODE="+g.mode, "POLICY="+file.path)
		both := []string{sites[i].address, caddy.address}
		for client := range 32 {
			askInTurn(t, both, client, 200, 200, 200, 200, 429, 429)
		}
		for _, s := range g.servers {
			if keys := s.Client().DBSize(t.Context()).Val(); keys < 3 {
				t.Errorf("%s: %s has %d keys of 32 clients", g.mode, s.Addr, keys)
			}
		}
		var got tally
		startLoadOn(sites[i].address+"/leased", 32, &got, times(1_500)).Wait()
		startLoadOn(caddy.address+"/leased", 1, &got, times(10)).Wait()
		if n := got.admitted.Load(); n > 1_000 || got.serverErrors.Load()+got.broken.Load() != 0 {
			t.Errorf("%s: %d of 1000 are admitted, %s", g.mode, n, got.summarizeOthers())
		}
	}
}
