// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/freeport"
	"github.com/penstock/penstock/internal/redistest"
)

// resolver is a DNS server that knows one host. What it says can be changed.
type resolver struct {
	address string

	mu     sync.Mutex
	mood   mood
	points net.IP // where the host is
}

// mood is how a resolver answers.
type mood uint8

const (
	truthful mood = iota
	silent        // not at all
	ignorant      // that there is no such host
)

// startResolver serves until the test ends.
func startResolver(t testing.TB, points net.IP) *resolver {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	r := &resolver{address: socket.LocalAddr().String(), points: points}
	go func() {
		question := make([]byte, 512)
		for {
			n, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			if reply := r.answer(question[:n]); reply != nil {
				_, _ = socket.WriteTo(reply, from)
			}
		}
	}()
	return r
}

// becomes changes what it says from now on.
func (r *resolver) becomes(m mood) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mood = m
}

// moves lets the host be elsewhere.
func (r *resolver) moves(to net.IP) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.points = to
}

// answer answers a question; nil is silence. The name is taken for the host's, whatever it is; of its addresses only the one of IPv4
// is known.
func (r *resolver) answer(question []byte) (reply []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const header, addressIPv4 = 12, 1
	end := header
	for end < len(question) && question[end] != 0 { // labels, each behind its length
		end += 1 + int(question[end])
	}
	if end += 5; end > len(question) || r.mood == silent { // the root, type and class
		return nil
	}
	reply = append(reply, question[0], question[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0)
	reply = append(reply, question[header:end]...)
	switch {
	case r.mood == ignorant:
		reply[3] |= 3 // NXDOMAIN
	case question[end-3] == addressIPv4:
		reply[7] = 1
		reply = append(reply, 0xC0, header, 0, addressIPv4, 0, 1, 0, 0, 0, 1, 0, 4) // the same name, for a second
		reply = append(reply, r.points.To4()...)
	}
	return reply
}

// Where the servers are that a name may lead to: at one port.
var namedHosts = [...]string{"127.0.0.2", "127.0.0.3"}

// newNamedGroup starts a Redis that the nodes know by name.
func newNamedGroup(t testing.TB) *nodeGroup {
	t.Helper()
	port := portOf(freeport.Address(t))
	g := &nodeGroup{t: t, resolver: startResolver(t, net.ParseIP(namedHosts[0]))}
	g.redis = redistest.Start(t, "--port", port, "--bind", namedHosts[0])
	for range groupNodes {
		g.machines = append(g.machines, newMachine(t, g.resolver.address))
		g.at("redis://redis.penstock.test:" + port)
	}
	return g
}

// newNamedPair starts a replica too, which may take the name over.
func newNamedPair(t testing.TB) *nodeGroup {
	t.Helper()
	g := newNamedGroup(t)
	port := portOf(g.stores[0])
	g.replica = redistest.Start(t, "--port", port, "--bind", namedHosts[1], "--replicaof", namedHosts[0]+" "+port,
		"--repl-diskless-sync-delay", "0")
	await.Until(t, time.Minute, "the replica has what its master has", func() bool {
		text, err := g.replica.Client().Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(text, "master_link_status:up")
	})
	return g
}

// losesName begins a fault of the resolver. What is connected needs no name, and so connections are closed: once, and no more.
func losesName(m mood) func(g *nodeGroup) {
	return func(g *nodeGroup) {
		g.resolver.becomes(m)
		g.disconnect()
	}
}

// disconnect has Redis close the connections of all nodes.
func (g *nodeGroup) disconnect() {
	g.t.Helper()
	redisSays("CLIENT KILL TYPE normal SKIPME yes")(g)
}

// failover makes the replica the master and the name lead there, as managed services do. The old master goes on as its replica, and
// closes no connection.
func (g *nodeGroup) failover() {
	g.t.Helper()
	old, port := g.redis, portOf(g.stores[0])
	g.resolver.moves(net.ParseIP(namedHosts[1]))
	for _, step := range []struct {
		server *redistest.Server
		args   []any
	}{{g.replica, []any{"replicaof", "no", "one"}}, {old, []any{"replicaof", namedHosts[1], port}}} {
		if err := step.server.Client().Do(context.Background(), step.args...).Err(); err != nil {
			g.t.Fatal(err)
		}
	}
}
