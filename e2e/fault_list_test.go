// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/dnstest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// fault is a row of docs/explanation/faults.md.
type fault struct {
	name string
	// group starts the Redis of the nodes. If it is nil, the nodes have a single server.
	group func(t testing.TB) *nodeGroup
	// begin begins the fault, and the function named end ends it. If end is nil, the fault is
	// instantaneous.
	begin, end func(g *nodeGroup)
	// harmless is set if every request should be decided during the fault.
	harmless bool
	// forgets is set if Redis loses its counters, so that as many requests as the limit may be
	// admitted again. Under other faults, no limit may be exceeded.
	forgets bool
	// always is set if the fault also runs in "make test". The others run only in "make faults".
	always bool
	// edits is set if the fault itself edits the policy.
	edits bool
	// policy changes the policy of a column. The argument named words holds further fields for its
	// rules. If the function is nil, the policy stays as it is.
	policy func(policy, words string) string
}

// fault.redis starts the Redis that the fault needs.
func (f *fault) redis(t testing.TB) *nodeGroup {
	t.Helper()
	if f.group == nil {
		return newNodeGroup(t)
	}
	return f.group(t)
}

// eachLink returns a function that calls do for the link of each node.
func eachLink(do func(l *link)) func(g *nodeGroup) {
	return func(g *nodeGroup) {
		for _, l := range g.links {
			do(l)
		}
	}
}

// redisSays returns a function that sends a command to Redis.
func redisSays(words string) func(g *nodeGroup) {
	return func(g *nodeGroup) {
		g.t.Helper()
		var args []any
		for _, word := range strings.Fields(words) {
			args = append(args, strings.Trim(word, `"`))
		}
		if err := g.redis.Client().Do(context.Background(), args...).Err(); err != nil {
			g.t.Fatalf("%s: %v", words, err)
		}
	}
}

func heal(g *nodeGroup) { eachLink((*link).heal)(g) }

var faults = []fault{
	{name: "Redis killed, and back empty", always: true, forgets: true,
		begin: func(g *nodeGroup) { g.redis.Kill() }, end: func(g *nodeGroup) { g.redis.Restart() }},
	{name: "Redis stopped (hangs)", always: true,
		begin: func(g *nodeGroup) { g.redis.Pause() }, end: func(g *nodeGroup) { g.redis.Resume() }},
	{name: "Redis slow: 20 ms more each way", harmless: true,
		begin: eachLink(func(l *link) { l.addToxic("latency", map[string]int{"latency": 10}) }), end: heal},
	{name: "Redis slower than the deadline: 200 ms",
		begin: eachLink(func(l *link) { l.addToxic("latency", map[string]int{"latency": 100}) }), end: heal},
	{name: "network narrow: 2 KB/s",
		begin: eachLink(func(l *link) { l.addToxic("bandwidth", map[string]int{"rate": 2}) }), end: heal},
	{name: "Redis flushed", always: true, forgets: true, harmless: true, begin: redisSays("FLUSHALL")},
	{name: "scripts flushed", harmless: true, begin: redisSays("SCRIPT FLUSH")},
	{name: "Redis out of memory",
		begin: redisSays("CONFIG SET maxmemory 1"), end: redisSays("CONFIG SET maxmemory 0")},
	{name: "Redis a read-only replica, then promoted",
		begin: redisSays("REPLICAOF 127.0.0.1 1"), end: redisSays("REPLICAOF NO ONE")},
	{name: "connections reset, again and again",
		begin: eachLink(func(l *link) { l.addToxic("reset_peer", map[string]int{"timeout": 20}) }), end: heal},
	{name: "network cut",
		begin: eachLink((*link).cut), end: eachLink((*link).reconnect)},
	{name: "one node cut off from Redis",
		begin: func(g *nodeGroup) { g.links[0].cut() }, end: func(g *nodeGroup) { g.links[0].reconnect() }},
	{name: "the nodes cut off from Redis in turn", begin: cutByTurns},
	{name: "one way: packets of the nodes are held back, then arrive at once",
		begin: eachLink(func(l *link) { l.hold(toRedis) }), end: heal},
	{name: "one way: packets of Redis are held back, then arrive at once",
		begin: eachLink(func(l *link) { l.hold(fromRedis) }), end: heal},
	{name: "DNS gone (no answer), connections kept", group: newNamedGroup, harmless: true,
		begin: func(g *nodeGroup) { g.resolver.SetMode(dnstest.Silent) }, end: func(g *nodeGroup) { g.resolver.SetMode(dnstest.Truthful) }},
	{name: "DNS gone (no answer), and connections lost", group: newNamedGroup,
		begin: losesName(dnstest.Silent), end: func(g *nodeGroup) { g.resolver.SetMode(dnstest.Truthful) }},
	{name: "DNS without the name (NXDOMAIN), and connections lost", group: newNamedGroup,
		begin: losesName(dnstest.Ignorant), end: func(g *nodeGroup) { g.resolver.SetMode(dnstest.Truthful) }},
	{name: "failover by DNS: the name leads to the replica, and the old master becomes a replica", group: newNamedPair, forgets: true,
		begin: (*nodeGroup).failover},
	{name: "password changed",
		begin: func(g *nodeGroup) {
			redisSays("CONFIG SET requirepass other")(g)
			redisSays("CLIENT KILL TYPE normal SKIPME yes")(g)
		},
		end: redisSays(`CONFIG SET requirepass ""`)},
	{name: "Redis' clock an hour ahead, and back", harmless: true, always: true,
		begin: eachLink(func(l *link) { l.addToxic("clock", map[string]int{"ahead_seconds": 3600}) }), end: heal},
	{name: "Redis' clock an hour behind, and back", harmless: true,
		begin: eachLink(func(l *link) { l.addToxic("clock", map[string]int{"ahead_seconds": -3600}) }), end: heal},
	{name: "a node's clock an hour ahead, and back", group: newClockGroup, harmless: true,
		begin: func(g *nodeGroup) { g.machines[0].jump(time.Hour) }, end: func(g *nodeGroup) { g.machines[0].jump(0) }},
	{name: "a node's clock an hour behind, and back", group: newClockGroup, harmless: true,
		begin: func(g *nodeGroup) { g.machines[0].jump(-time.Hour) }, end: func(g *nodeGroup) { g.machines[0].jump(0) }},
	{name: "a node's clock an hour behind, and Redis stopped (hangs)", group: newClockGroup,
		begin: func(g *nodeGroup) { g.redis.Pause(); pass(faultLasts / 3); g.machines[0].jump(-time.Hour) },
		end:   func(g *nodeGroup) { g.redis.Resume() }},
	{name: "the master killed that sentinels watch", group: newSentinelGroup, always: true, forgets: true,
		begin: func(g *nodeGroup) {
			master := g.sentinel.Master()
			master.Kill()
			g.sentinel.AwaitFailover(master)
		}},
	{name: "a master of a cluster killed", group: newClusterGroup, forgets: true,
		begin: func(g *nodeGroup) {
			slot, master := g.openMaster()
			master.Kill()
			g.cluster.AwaitFailover(slot, master)
		}},
	{name: "all replicas of a cluster lost", group: newClusterGroup, harmless: true,
		begin: func(g *nodeGroup) {
			for _, replica := range g.cluster.Nodes[3:] {
				replica.Kill()
			}
		}},
	{name: "a slot of a cluster moving, there and back", group: newClusterGroup, harmless: true,
		begin: func(g *nodeGroup) {
			slot, from := g.openMaster()
			for _, to := range g.cluster.Nodes[:3] {
				if to != from {
					g.cluster.MoveSlot(slot, to)
					g.cluster.MoveSlot(slot, from)
				}
			}
		}},
	{name: "a node killed, and back", always: true, begin: func(g *nodeGroup) { g.crash(0) }},
	{name: "a million clients with random addresses", harmless: true, always: true, edits: true, policy: floodPolicy,
		begin: func(g *nodeGroup) { g.flood() }},
	{name: "10,000 rules", harmless: true, policy: manyRules, begin: func(*nodeGroup) {}},
	{name: "10,000 rules, and Redis stopped (hangs)", policy: manyRules,
		begin: func(g *nodeGroup) { g.redis.Pause() }, end: func(g *nodeGroup) { g.redis.Resume() }},
	{name: "policy edited and taken back", edits: true,
		begin:    func(g *nodeGroup) { g.edit("retry_after: 30s, ", "") },
		end:      func(g *nodeGroup) { g.edit("", "") },
		harmless: true},
}

// cutByTurns cuts off the first node, then the second node instead, then both. It reconnects the
// first node and then the second.
func cutByTurns(g *nodeGroup) {
	one, other := g.links[0], g.links[1]
	for _, step := range []func(){one.cut, func() { one.reconnect(); other.cut() }, one.cut, one.reconnect, other.reconnect} {
		step()
		pass(faultLasts / 5)
	}
}

// openMaster returns the master that has the counter of the rule named open, and the slot of this
// counter.
func (g *nodeGroup) openMaster() (slot int, master *redistest.Server) {
	slot = g.cluster.Slot("{open}")
	return slot, g.cluster.Master(slot)
}
