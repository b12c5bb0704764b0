// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/dnstest"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// The addresses of the servers to which the name may resolve. Both servers have the same port.
var namedHosts = [...]string{"127.0.0.2", "127.0.0.3"}

// newNamedGroup starts a Redis to which the nodes connect by its name.
func newNamedGroup(t testing.TB) *nodeGroup {
	t.Helper()
	port := portOf(freeport.Address(t))
	g := &nodeGroup{t: t, resolver: dnstest.Start(t, netip.MustParseAddr(namedHosts[0]))}
	g.redis = redistest.Start(t, "--port", port, "--bind", namedHosts[0])
	for range groupNodes {
		g.machines = append(g.machines, newMachine(t, g.resolver.Address))
		g.at("redis://redis.penstock.test:" + port)
	}
	return g
}

// newNamedPair is like newNamedGroup, but also starts a replica that can take over the name.
func newNamedPair(t testing.TB) *nodeGroup {
	t.Helper()
	g := newNamedGroup(t)
	port := portOf(g.stores[0])
	g.replica = redistest.Start(t, "--port", port, "--bind", namedHosts[1], "--replicaof", namedHosts[0]+" "+port,
		"--repl-diskless-sync-delay", "0")
	eventually.Until(t, time.Minute, "the replica has what its master has", func() bool {
		text, err := g.replica.Client().Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(text, "master_link_status:up")
	})
	return g
}

// losesName returns a function that makes the resolver fail. It then closes all open connections,
// because these would still work without the name.
func losesName(m dnstest.Mode) func(g *nodeGroup) {
	return func(g *nodeGroup) {
		g.resolver.SetMode(m)
		g.disconnect()
	}
}

// nodeGroup.disconnect makes Redis close the connections of all nodes.
func (g *nodeGroup) disconnect() {
	g.t.Helper()
	redisSays("CLIENT KILL TYPE normal SKIPME yes")(g)
}

// failover promotes the replica and moves the name to it, as managed services do. The old master
// becomes a replica of the new one, and keeps its connections open.
func (g *nodeGroup) failover() {
	g.t.Helper()
	old, port := g.redis, portOf(g.stores[0])
	g.resolver.MoveTo(netip.MustParseAddr(namedHosts[1]))
	for _, step := range []struct {
		server *redistest.Server
		args   []any
	}{{g.replica, []any{"replicaof", "no", "one"}}, {old, []any{"replicaof", namedHosts[1], port}}} {
		if err := step.server.Client().Do(context.Background(), step.args...).Err(); err != nil {
			g.t.Fatal(err)
		}
	}
}
