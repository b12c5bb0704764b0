// SPDX-License-Identifier: Apache-2.0

// Package freeport gives tests addresses for the servers that they start: none is given to two tests of this machine at once,
// in whatever process they run, and none is of the ports that the system gives to connections.
//
// Who listens on port 0, closes and hands the number on may lose it meanwhile, and a server that shares its ports, as Caddy
// does, does not even notice: it gets half of the other's requests. A port costs a descriptor until the test ends. It is not
// for a test that can listen on port 0 itself and keep the listener, and needs the abstract sockets of Linux.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The ports lie below those that Linux takes for connections, from 32768 on, and above those of well-known servers.
const (
	first = 20_000
	ports = 12_000
	tries = 1000
)

// busAhead is how far above a node's port the one is at which a cluster of Redis talks about itself.
const busAhead = 10_000

// Address returns an address of this machine, 127.0.0.1:PORT, at which nobody listens. It is the test's until it has ended and
// what it had started afterwards is cleaned up.
func Address(t testing.TB) string {
	t.Helper()
	return address(t, ports, 0)
}

// WithBus is [Address] for a node of a Redis cluster: PORT + 10000, its bus, is the test's too.
func WithBus(t testing.TB) string {
	t.Helper()
	return WithBuses(t, 1)
}

// WithBuses is [WithBus] for n nodes: it returns the address of the first, and the ports that follow are the test's too, each with
// its bus.
func WithBuses(t testing.TB, n int) string {
	t.Helper()
	var ahead []int
	for i := range n {
		ahead = append(ahead, i, busAhead+i)
	}
	return address(t, ports-busAhead-n, ahead...)
}

// address finds one of the first n ports such that all that lie so far ahead of it are free.
func address(t testing.TB, n int, ahead ...int) string {
	t.Helper()
	for range tries {
		port := first + rand.IntN(n)
		if reserve(t, port, ahead) {
			return fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	t.Fatalf("no free port from %d to %d in %d tries", first, first+n-1, tries)
	return ""
}

// reserve reports whether it got all the ports or, then, none.
func reserve(t testing.TB, port int, ahead []int) bool {
	var reservations []net.Listener
	release := func() {
		for _, r := range reservations {
			r.Close()
		}
	}
	for _, a := range ahead {
		reservation, err := net.Listen("unix", "@penstock-test-port-"+strconv.Itoa(port+a))
		if err != nil {
			release()
			return false // another test's
		}
		reservations = append(reservations, reservation)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+a))
		if err != nil {
			release()
			return false // somebody else's
		}
		listener.Close()
	}
	t.Cleanup(release)
	return true
}
