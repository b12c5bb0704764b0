// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/dnstest"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/redistest"
)

// groupNodes is how many nodes of one front share the Redis.
const groupNodes = 2

// What the nodes limit: the same on both paths, but for what becomes of requests that the store does not answer.
const (
	faultLimit = 3000
	openPath   = "/open" // on_error: allow
	shutPath   = "/shut" // on_error: deny
)

var faultPaths = []string{openPath, shutPath}

// faultPolicy is what the nodes limit by; WORDS is said of both rules.
const faultPolicy = `name: faults
rules:
  - {name: open, match: {path: /open}, per: [], limit: 3000/31d, expose: true, on_error: allowWORDS}
  - {name: shut, match: {path: /shut}, per: [], limit: 3000/31d, expose: true, on_error: denyWORDS}
`

// faultCaddyfile counts in STORE.
const faultCaddyfile = `{
	admin ADMIN
	penstock {
		store redis STORE
		policy {env.POLICY}
	}
}
:SITE {
	penstock
	respond "ok"
}
`

// nodeGroup is nodes of one front on one Redis, be that a server, or servers that stand together.
type nodeGroup struct {
	t        testing.TB
	redis    *redistest.Server   // a server, which each node reaches by a line of its own
	lines    []*line             // likewise
	sentinel *redistest.Sentinel // or a master that sentinels watch
	cluster  *redistest.Cluster  // or a cluster
	stores   []string            // for each node, how a Caddyfile names where it counts
	flags    [][]string          // and a bridge
	resolver *dnstest.Server     // of the name by which the nodes know the server
	replica  *redistest.Server   // of the server, which may take the name over
	machines []*machine          // of each node; nil is the true one
	nodes    []string            // addresses
	policies []*policyFile
	policy   string
	running  []*server // all that the nodes consist of
	said     string    // what is to be seen of the fault beside what clients see
	// crash kills a node as it is, and brings it back.
	crash func(node int)
}

// newNodeGroup starts a Redis and the lines to it.
func newNodeGroup(t testing.TB, redisArgs ...string) *nodeGroup {
	t.Helper()
	address := freeport.Address(t)
	g := &nodeGroup{t: t}
	g.redis = redistest.Start(t, append([]string{"--port", portOf(address), "--bind", "127.0.0.1"}, redisArgs...)...)
	for range groupNodes {
		l := newLine(t, address)
		g.lines = append(g.lines, l)
		g.at(l.url())
	}
	return g
}

// at has the next node count at a URL.
func (g *nodeGroup) at(url string) {
	g.stores, g.flags = append(g.stores, url), append(g.flags, []string{"--redis", url})
}

// newClockGroup starts a Redis, and machines for the nodes whose clocks can be set.
func newClockGroup(t testing.TB) *nodeGroup {
	t.Helper()
	g := newNodeGroup(t)
	for range groupNodes {
		g.machines = append(g.machines, newMachine(t, ""))
	}
	return g
}

// newSentinelGroup starts a master with a replica, and sentinels.
func newSentinelGroup(t testing.TB) *nodeGroup {
	t.Helper()
	s := redistest.StartSentinel(t)
	g := &nodeGroup{t: t, sentinel: s}
	g.count([]string{"mode", "sentinel"}, []string{"master", s.Name}, append([]string{"addrs"}, s.Addrs()...))
	return g
}

// newClusterGroup starts a cluster of three masters and their replicas.
func newClusterGroup(t testing.TB) *nodeGroup {
	t.Helper()
	c := redistest.StartCluster(t)
	g := &nodeGroup{t: t, cluster: c}
	g.count([]string{"mode", "cluster"}, append([]string{"addrs"}, c.Addrs()...))
	return g
}

// count has all nodes count where the words of a store say, each a name and its values, which are flags of a bridge as well.
func (g *nodeGroup) count(words ...[]string) {
	store, flags := "{\n", []string{}
	for _, word := range words {
		store += "\t\t\t" + strings.Join(word, " ") + "\n"
		flags = append(flags, "--redis-"+word[0], strings.Join(word[1:], ","))
	}
	for range groupNodes {
		g.stores, g.flags = append(g.stores, store+"\t\t}"), append(g.flags, flags)
	}
}

// edit edits the policy of all nodes: words are put at the beginning of each rule, and more at the end.
func (f *nodeGroup) edit(words, more string) {
	for _, file := range f.policies {
		file.edit(strings.ReplaceAll(f.policy, "{name", "{"+words+"name") + more)
	}
}

// A rule that a policy is edited to have. Whether a node has it shows while nothing is decided, too.
const (
	latePath = "/late"
	lateRule = "  - {name: late, match: {path: /late}, per: [], limit: 3000/31d, expose: true, on_error: deny}\n"
)

// awaitLate waits until all nodes have the late rule.
func (f *nodeGroup) awaitLate() {
	f.t.Helper()
	for _, node := range f.nodes {
		await.Until(f.t, time.Minute, "the node has the edited policy", func() bool {
			a, err := ask(http.DefaultClient, "http://"+node+latePath)
			return kindOf(a, err) == counted || kindOf(a, err) == unavailable
		})
	}
}

// programs returns what a node runs, and what it needs of its environment: "" and nothing if it runs on the true machine.
func (f *nodeGroup) programs(node int) (p programs, env []string) {
	f.t.Helper()
	if f.machines == nil {
		return programs{}, nil
	}
	built, err := buildPrograms()
	if err != nil {
		f.t.Fatal(err)
	}
	return *built, f.machines[node].env
}

// column is a way to run nodes.
type column struct {
	name  string
	words string // of the policy's rules
	// prepare starts what all faults share, and returns what starts the nodes of the group for the fault with that number.
	prepare func(t testing.TB, faults int) (start func(f *nodeGroup, number int, policy string))
}

var columns = []column{
	{name: "Caddy, exact", prepare: caddies},
	{name: "Caddy, leased", words: ", lease: auto", prepare: caddies},
	{name: "Envoy, exact", prepare: envoys},
	{name: "Envoy, leased", words: ", lease: auto", prepare: envoys},
}

// policy is what a column limits by.
func (c *column) policy() string { return strings.ReplaceAll(faultPolicy, "WORDS", c.words) }

// caddies runs a Caddy for each node.
func caddies(testing.TB, int) func(f *nodeGroup, number int, policy string) {
	return func(f *nodeGroup, _ int, policy string) {
		var running []*process
		for i, store := range f.stores {
			file := byTurns(f.t, filepath.Join(f.t.TempDir(), "policy.yaml"))
			file.edit(policy)
			programs, env := f.programs(i)
			p := startCaddyOf(f.t, programs.caddy, strings.Replace(faultCaddyfile, "STORE", store, 1), append(env, "POLICY="+file.path)...)
			running, f.nodes, f.policies = append(running, p), append(f.nodes, p.address), append(f.policies, file)
			f.running = append(f.running, p.server)
		}
		f.crash = func(node int) {
			running[node].kill()
			running[node].run(f.t)
		}
	}
}

// envoys runs nodes of [envoysWith] whose filter has the deadline of the example.
func envoys(t testing.TB, faults int) func(f *nodeGroup, number int, policy string) {
	return envoysWith(t, faults, "")
}

// envoysWith runs one Envoy for all faults, and a site with a bridge of its own for each node: for Redis the bridges are the nodes.
func envoysWith(t testing.TB, faults int, set string) func(f *nodeGroup, number int, policy string) {
	var sites []*site
	for range faults * groupNodes {
		sites = append(sites, &site{set: "poll: 200ms\n" + set})
	}
	startEnvoy(t, wasm(t), nil, sites...)
	return func(f *nodeGroup, number int, policy string) {
		var running []*bridge
		for i, flags := range f.flags {
			s := sites[number*groupNodes+i]
			programs, env := f.programs(i)
			if programs.clock != "" { // an Envoy of its own, where the clock goes as the bridge's does
				s = &site{set: "poll: 200ms"}
				startEnvoyIn(f.t, append(env, "LD_PRELOAD="+programs.clock), wasm(f.t), nil, s)
			}
			b := newBridge(f.t, policy, flags...)
			b.listen, b.program, b.env = s.bridge, programs.penstock, env
			s.envoy.loads(f.t, func() { b.run(f.t) })
			f.running = append(f.running, b.server, s.envoy.server)
			running, f.nodes, f.policies = append(running, b), append(f.nodes, s.address), append(f.policies, b.policy)
		}
		f.crash = func(node int) {
			running[node].kill()
			running[node].run(f.t)
		}
	}
}
