// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/dnstest"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// groupNodes is the number of nodes that share a Redis in a test of faults.
const groupNodes = 2

// The paths of the requests. The rules of the two paths differ only in their names and in on_error.
const (
	allowPath = "/open" // the path under on_error: allow
	denyPath  = "/shut" // the path under on_error: deny
)

// faultLimit returns the limit of each of the two paths. It is so large that the load does not use
// it up before the fault is over.
func faultLimit() int {
	if *allFaults {
		return 3000
	}
	return 400
}

var faultPaths = []string{allowPath, denyPath}

// faultPolicy is the policy of the nodes. LIMIT is replaced by the limit of both rules, and WORDS
// by further fields of both rules.
const faultPolicy = `name: faults
rules:
  - {name: open, match: {path: /open}, per: [], limit: LIMIT/31d, expose: true, on_error: allowWORDS}
  - {name: shut, match: {path: /shut}, per: [], limit: LIMIT/31d, expose: true, on_error: denyWORDS}
`

// faultCaddyfile is a Caddyfile in which STORE is replaced by the store.
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

// nodeGroup is a group of nodes of one front that share a Redis. The Redis is one server, or
// several servers with replicas.
type nodeGroup struct {
	t        testing.TB
	redis    *redistest.Server   // a single server; each node reaches it over a link of its own
	links    []*link             // the link of each node
	sentinel *redistest.Sentinel // or else a master that sentinels watch
	cluster  *redistest.Cluster  // or else a cluster
	stores   []string            // for each node, the store in the syntax of a Caddyfile
	flags    [][]string          // for each node, the flags that name the store for a bridge
	resolver *dnstest.Server     // resolves the name by which the nodes connect to the server
	replica  *redistest.Server   // a replica of the server that can take over its name
	machines []*machine          // the machine of each node; nil for the real machine
	nodes    []string            // addresses
	policies []*policyFile
	policy   string
	running  []*server // all processes of the nodes
	said     string    // a remark about the fault, for the table
	// crash kills the processes of a node and starts them again.
	crash func(node int)
}

// newNodeGroup starts a Redis and the links to it.
func newNodeGroup(t testing.TB, redisArgs ...string) *nodeGroup {
	t.Helper()
	address := freeport.Address(t)
	g := &nodeGroup{t: t}
	g.redis = redistest.Start(t, append([]string{"--port", portOf(address), "--bind", "127.0.0.1"}, redisArgs...)...)
	for range groupNodes {
		l := newLink(t, address)
		g.links = append(g.links, l)
		g.at(l.url())
	}
	return g
}

// nodeGroup.at adds the store of the next node, which has the given URL.
func (g *nodeGroup) at(url string) {
	g.stores, g.flags = append(g.stores, url), append(g.flags, []string{"--redis", url})
}

// newClockGroup starts a Redis, and creates a machine with its own clock for each node.
func newClockGroup(t testing.TB) *nodeGroup {
	t.Helper()
	g := newNodeGroup(t)
	for range groupNodes {
		g.machines = append(g.machines, newMachine(t, ""))
	}
	return g
}

// newSentinelGroup starts a master with a replica, and sentinels that watch the master.
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

// nodeGroup.count sets the store of all nodes. Each element of words is the name of a setting of
// the store, followed by its values. The bridge has flags with the same names.
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

// nodeGroup.edit edits the policy of all nodes. It inserts the given fields at the beginning of
// each rule, and appends the given lines to the policy.
func (f *nodeGroup) edit(fields, lines string) {
	for _, file := range f.policies {
		file.edit(strings.ReplaceAll(f.policy, "{name", "{"+fields+"name") + lines)
	}
}

// The path and the text of a rule that an edit adds. By this rule, the test can see whether a node
// has read the edit, even while the store does not decide.
const (
	latePath = "/late"
	lateRule = "  - {name: late, match: {path: /late}, per: [], limit: 3000/31d, expose: true, on_error: deny}\n"
)

// awaitLate waits until all nodes have the rule named late.
func (f *nodeGroup) awaitLate() {
	f.t.Helper()
	for _, node := range f.nodes {
		eventually.Until(f.t, time.Minute, "the node has the edited policy", func() bool {
			a, err := ask(http.DefaultClient, "http://"+node+latePath)
			kind := kindOf(a, err)
			return kind == counted || kind == unavailable || kind == overloaded
		})
	}
}

// program returns the path of a patched program for a node, and its environment. Both are empty if
// the node runs on the real machine.
func (f *nodeGroup) program(node int, build func() (string, error)) (path string, env []string) {
	f.t.Helper()
	if f.machines == nil {
		return "", nil
	}
	path, err := build()
	if err != nil {
		f.t.Fatal(err)
	}
	return path, f.machines[node].env
}

// column is one way to run nodes.
type column struct {
	name  string
	words string // further fields of the policy's rules
	// prepare starts processes that all faults share. It returns a function that starts the nodes
	// of a group, for the fault with the given number.
	prepare func(t testing.TB, faults int) (start func(f *nodeGroup, number int, policy string))
}

var columns = []column{
	{name: "Caddy, exact", prepare: caddies},
	{name: "Caddy, leased", words: ", lease: auto", prepare: caddies},
	{name: "Envoy, exact", prepare: envoys},
	{name: "Envoy, leased", words: ", lease: auto", prepare: envoys},
	{name: "the module in Envoy, exact", prepare: modules},
	{name: "the module in Envoy, leased", words: ", lease: auto", prepare: modules},
}

// column.policy returns the policy that the nodes of this column enforce.
func (c *column) policy() string {
	return strings.NewReplacer("LIMIT", strconv.Itoa(faultLimit()), "WORDS", c.words).Replace(faultPolicy)
}

// caddies returns a function that starts a Caddy for each node.
func caddies(testing.TB, int) func(f *nodeGroup, number int, policy string) {
	return func(f *nodeGroup, _ int, policy string) {
		var running []*process
		for i, store := range f.stores {
			file := newAlternatingFile(f.t, filepath.Join(f.t.TempDir(), "policy.yaml"))
			file.edit(policy)
			program, env := f.program(i, machineCaddy)
			p := startCaddyOf(f.t, program, strings.Replace(faultCaddyfile, "STORE", store, 1), append(env, "POLICY="+file.path)...)
			running, f.nodes, f.policies = append(running, p), append(f.nodes, p.address), append(f.policies, file)
			f.running = append(f.running, p.server)
		}
		f.crash = func(node int) {
			running[node].kill()
			running[node].run(f.t)
		}
	}
}

// envoys is [envoysWith] with the default deadline of the filter.
func envoys(t testing.TB, faults int) func(f *nodeGroup, number int, policy string) {
	return envoysWith(t, faults, "")
}

// envoysWith returns a function that starts a site with its own bridge for each node. One Envoy has
// the sites of all faults, except that a node with a clock of its own has its own Envoy. For Redis,
// the bridges are the nodes.
func envoysWith(t testing.TB, faults int, set string) func(f *nodeGroup, number int, policy string) {
	var sites []*site
	for range faults * groupNodes {
		sites = append(sites, &site{set: "poll: 200ms\n" + set})
	}
	useEnvoy(t, nil, sites...)
	return func(f *nodeGroup, number int, policy string) {
		var running []*bridge
		for i, flags := range f.flags {
			s := sites[number*groupNodes+i]
			program, env := f.program(i, machinePenstock)
			if clock, _ := f.program(i, machineClock); clock != "" { // an Envoy of its own, with the bridge's clock
				s = &site{set: "poll: 200ms"}
				startEnvoyIn(f.t, append(env, "LD_PRELOAD="+clock), wasm(f.t), nil, s)
			}
			b := newBridge(f.t, policy, flags...)
			b.listen, b.program, b.env = s.bridge, program, env
			s.envoy.awaitPolicyLoad(f.t, func() { b.run(f.t) })
			f.running = append(f.running, b.server, s.envoy.server)
			running, f.nodes, f.policies = append(running, b), append(f.nodes, s.address), append(f.policies, b.policy)
		}
		f.crash = func(node int) {
			running[node].kill()
			running[node].run(f.t)
		}
	}
}
