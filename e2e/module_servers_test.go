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

// sharedCaddyfile configures a Caddy over several Redis servers.
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

// TestModuleCountsOnSeveralServers tests that the module counts on all servers of a ring and of a
// cluster, that it counts each client on the same server as Caddy does, and that leases are exact
// there.
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
	const policy = "name: shop\non_error: deny\nrules:\n- {name: each, match: {path: /each}, per: [\"header:X-Client\"], unverified: true, limit: 4/31d}\n" +
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
		for client := range 32 {
			for n, address := range []string{sites[i].address, caddy.address, sites[i].address, caddy.address, sites[i].address, caddy.address} {
				a, err := ask(http.DefaultClient, "http://"+address+"/each", "X-Client", "client-"+strconv.Itoa(client))
				if admitted := a.status == http.StatusOK; err != nil || admitted != (n < 4) || !admitted && a.status != http.StatusTooManyRequests {
					t.Fatalf("%s: client %d, request %d at %s: %d, %v", g.mode, client, n+1, address, a.status, err)
				}
			}
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
