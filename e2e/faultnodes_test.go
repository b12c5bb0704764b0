// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

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

const faultCaddyfile = `{
	admin ADMIN
	penstock {
		store redis {env.PENSTOCK_REDIS}
		policy {env.POLICY}
	}
}
:SITE {
	penstock
	respond "ok"
}
`

// nodeGroup is nodes of one front on one Redis, each by a line of its own.
type nodeGroup struct {
	t        testing.TB
	redis    *redistest.Server
	port     string // of Redis
	lines    []*line
	nodes    []string // addresses
	policies []*policyFile
	policy   string
	// crash kills a node as it is, and brings it back.
	crash func(node int)
}

// newNodeGroup starts the Redis and the lines.
func newNodeGroup(t testing.TB, redisArgs ...string) *nodeGroup {
	t.Helper()
	address := freeport.Address(t)
	f := &nodeGroup{t: t, port: portOf(address)}
	f.redis = redistest.Start(t, append([]string{"--port", f.port, "--bind", "127.0.0.1"}, redisArgs...)...)
	for range groupNodes {
		f.lines = append(f.lines, newLine(t, address))
	}
	return f
}

// edit edits the policy of all nodes: words are put at the beginning of each rule.
func (f *nodeGroup) edit(words string) {
	for _, file := range f.policies {
		file.edit(strings.ReplaceAll(f.policy, "{name", "{"+words+"name"))
	}
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
	{name: "Envoy, exact", prepare: envoys},
}

// policy is what a column limits by.
func (c *column) policy() string { return strings.ReplaceAll(faultPolicy, "WORDS", c.words) }

// caddies runs a Caddy for each node.
func caddies(testing.TB, int) func(f *nodeGroup, number int, policy string) {
	return func(f *nodeGroup, _ int, policy string) {
		var running []*process
		for _, l := range f.lines {
			file := byTurns(f.t, filepath.Join(f.t.TempDir(), "policy.yaml"))
			file.edit(policy)
			p := startCaddy(f.t, faultCaddyfile, "PENSTOCK_REDIS="+l.url(), "POLICY="+file.path)
			running, f.nodes, f.policies = append(running, p), append(f.nodes, p.address), append(f.policies, file)
		}
		f.crash = func(node int) {
			running[node].kill()
			running[node].run(f.t)
		}
	}
}

// envoys runs one Envoy for all faults, and a site with a bridge of its own for each node: for Redis the bridges are the nodes.
func envoys(t testing.TB, faults int) func(f *nodeGroup, number int, policy string) {
	var sites []*site
	for range faults * groupNodes {
		sites = append(sites, &site{set: "poll: 200ms"})
	}
	startEnvoy(t, wasm(t), nil, sites...)
	return func(f *nodeGroup, number int, policy string) {
		var running []*bridge
		for i, l := range f.lines {
			s := sites[number*groupNodes+i]
			b := s.startBridge(f.t, policy, "--redis", l.url())
			running, f.nodes, f.policies = append(running, b), append(f.nodes, s.address), append(f.policies, b.policy)
		}
		f.crash = func(node int) {
			running[node].kill()
			running[node].run(f.t)
		}
	}
}
