// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// directed is a Caddyfile whose policy uses a directory of client records.
const directed = `{
	admin ADMIN
	penstock {
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		directory
	}
}
:SITE {
	penstock {
		name shop
		policy {env.POLICY}
	}
	respond "ok"
}
`

const directedPolicy = `name: shop
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: api, limit: 3/31d fixed_window, tiers: {gold: 100/31d fixed_window}}
`

// startDirected starts several Caddys that share a Redis and the directory in it.
func startDirected(t *testing.T, redis string, n int) (nodes []*process) {
	t.Helper()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(directedPolicy)
	for range n {
		nodes = append(nodes, startCaddy(t, directed, "PENSTOCK_REDIS="+redis, "POLICY="+file.path))
	}
	return nodes
}

// TestClientsAsData tests commands that block clients and networks, give a client its own limits,
// or give it a tier. Each change takes effect on every node within about a second. The commands
// call a Caddy, or Redis directly.
func TestClientsAsData(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := startDirected(t, server.URL(), 2)
	edit := func(args ...string) {
		t.Helper()
		penstock(t, append(append([]string{"client"}, args...), "--reason", "a test", "--actor", "ops")...).mustSucceed(t)
	}
	at := func(node *process) []string { return []string{"--admin", node.admin} }
	// holds waits until every node answers a client with the given status. This should take a
	// second at most, but the machine may be busy.
	holds := func(what, user string, status int) {
		t.Helper()
		began := time.Now()
		for i, node := range nodes {
			eventually.Until(t, 20*time.Second, what, func() bool { return node.statuses(user, 1)[0] == status })
			t.Logf("%s: node %d after %v", what, i, time.Since(began))
		}
	}
	if got, want := nodes[0].statuses("ann", 4), []int{200, 200, 200, 429}; !slices.Equal(got, want) {
		t.Fatalf("before any change: %v, want %v", got, want)
	}
	nodes[1].statuses("bob", 1)

	edit(append([]string{"block", "header.x-user:bob", "--for", "1h"}, at(nodes[0])...)...)
	holds("a blocked client is denied", "bob", 403)
	edit("unblock", "header.x-user:bob", "--redis", server.URL())
	holds("a client that is no longer blocked is served", "bob", 200)

	edit(append([]string{"set-limit", "header.x-user:ann", "api", "1000/31d fixed_window"}, at(nodes[1])...)...)
	holds("a client with a higher limit is served", "ann", 200)
	edit(append([]string{"set-tier", "header.x-user:cid", "gold"}, at(nodes[0])...)...)
	if a := nodes[1].ask(t.Context(), "GET", "/api", "X-User", "cid"); a.header.Get("X-RateLimit-Limit") != "100" {
		t.Errorf("a client of the tier gold has the limit %q", a.header.Get("X-RateLimit-Limit"))
	}
	edit(append([]string{"block", "ip:127.0.0.0/8", "--for", "1h"}, at(nodes[0])...)...)
	holds("every client of a blocked network is denied", "dan", 403)
	edit(append([]string{"unblock", "ip:127.0.0.0/8"}, at(nodes[1])...)...)
	holds("and is served afterwards", "dan", 200)

	page := nodes[0].scrape()
	for _, metric := range []string{`penstock_directory_lookups_total{result="hit"}`, "penstock_directory_clients 3"} {
		if !strings.Contains(page, metric) {
			t.Errorf("the metrics lack %s", metric)
		}
	}
	var shown struct {
		History []struct{ Actor, Action, Reason string }
	}
	out := penstock(t, append([]string{"client", "history", "header.x-user:bob", "--json"}, at(nodes[1])...)...).mustSucceed(t)
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatal(err)
	}
	if h := shown.History; len(h) != 2 || h[0].Action != "unblock" || h[0].Actor != "ops" || h[0].Reason != "a test" {
		t.Errorf("the history is %+v", shown.History)
	}
	nobody := penstock(t, append([]string{"client", "show", "user:nobody"}, at(nodes[0])...)...)
	nobody.endsWith(t, 3, "there is no record of user:nobody")
	penstock(t, append([]string{"client", "set-limit", "user:ann", "apy", "5/1m", "--reason", "x"}, at(nodes[0])...)...).
		mustFail(t, `has a rule "apy"`)
	penstock(t, append([]string{"client", "set-tier", "user:ann", "golden", "--reason", "x"}, at(nodes[0])...)...).
		mustFail(t, `has a tier "golden"; there are: ["gold"]`)
	penstock(t, append([]string{"client", "block", "user:ann"}, at(nodes[0])...)...).mustFail(t, "a reason is missing")
	penstock(t, append([]string{"client", "block", "user:ann", "--reason", "x", "--until", "2020-01-01"}, at(nodes[0])...)...).
		mustFail(t, "is not in the future")
}

// TestBlocksOutliveRedis tests that a record in the memory of a node stays in force while Redis is
// down, and that new clients are served by the policy alone.
func TestBlocksOutliveRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	node := startDirected(t, server.URL(), 1)[0]
	node.statuses("bob", 1)
	penstock(t, "client", "block", "header.x-user:bob", "--reason", "x", "--admin", node.admin).mustSucceed(t)
	eventually.Until(t, 20*time.Second, "the client is blocked", func() bool { return node.statuses("bob", 1)[0] == 403 })
	server.Kill()
	if got := node.statuses("bob", 3); !slices.Equal(got, []int{403, 403, 403}) {
		t.Errorf("a blocked client, without Redis: %v", got)
	}
	if got := node.statuses("new", 2); !slices.Equal(got, []int{200, 200}) {
		t.Errorf("a new client, without Redis: %v", got)
	}
	penstock(t, "client", "unblock", "header.x-user:bob", "--reason", "x", "--admin", node.admin).mustFail(t, "503")
}

// TestPolicyThatNeedsADirectory tests that a policy which needs a directory is rejected where there
// is none, with an error that names the remedy.
func TestPolicyThatNeedsADirectory(t *testing.T) {
	t.Parallel()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(directedPolicy + "directory: true\n")
	penstock(t, "validate", file.path).mustSucceed(t)
	caddyfile := filepath.Join(t.TempDir(), "Caddyfile")
	without := strings.NewReplacer("\t\tdirectory\n", "", "ADMIN", "off", "SITE", "8080", "{env.POLICY}", file.path,
		"{env.PENSTOCK_REDIS}", "redis://localhost:1").Replace(directed)
	if err := os.WriteFile(caddyfile, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(caddyProgram(t), "validate", "--config", caddyfile).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "write directory in the penstock block") {
		t.Errorf("Caddy says %v, %s", err, out)
	}
}

// TestAFloodOfClientsAdmitsNoBlockedOne tests that blocked clients are denied while thousands of
// made-up clients must be looked up in Redis, even if the node remembers only few clients. The node
// has not seen the blocked clients before.
func TestAFloodOfClientsAdmitsNoBlockedOne(t *testing.T) {
	t.Parallel()
	for _, remembered := range []string{"", "{\nclients_max 64\n}"} {
		floodDirectory(t, "directory "+remembered)
	}
}

// floodDirectory sends requests of made-up clients and of blocked clients to a Caddy with the given
// directory setting.
func floodDirectory(t *testing.T, setting string) {
	t.Helper()
	const connections, each, blocked = 20, 200, 20
	server := redistest.Start(t)
	for i := range blocked {
		penstock(t, "client", "block", fmt.Sprintf("header.x-user:blocked-%d", i), "--reason", "x", "--redis", server.URL()).mustSucceed(t)
	}
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(directedPolicy)
	node := startCaddy(t, strings.NewReplacer("{\n\tadmin", "{\n\tservers {\n\t\tprotocols h1 h2 h2c\n\t}\n\tadmin", "directory", setting).Replace(directed),
		"PENSTOCK_REDIS="+server.URL(), "POLICY="+file.path)
	var group sync.WaitGroup
	ask := func(client *http.Client, user string, want func(status int) bool) {
		group.Go(func() {
			a, err := ask(client, "http://"+node.address+"/", "X-User", user)
			if err != nil || !want(a.status) {
				t.Errorf("%s: %s: status %d, %v", setting, user, a.status, err)
			}
		})
	}
	for c := range connections {
		client := h2c(t, node.address)
		for i := range each {
			ask(client, fmt.Sprintf("made-up-%d-%d", c, i), func(status int) bool { return status == 200 || status == 503 })
			if i%20 == 0 {
				ask(client, fmt.Sprintf("blocked-%d", (c+i/20)%blocked), func(status int) bool { return status == 403 || status == 503 })
			}
		}
	}
	group.Wait()
	if page := node.scrape(); !strings.Contains(page, "penstock_directory_undirected_total 0\n") {
		t.Errorf("%s: requests were decided without records: %s", setting, page)
	}
}
