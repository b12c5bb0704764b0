// SPDX-License-Identifier: Apache-2.0

// Package freeport gives tests addresses for the servers that they start. On one machine, two tests
// never have the same port at the same time, even in different processes. The ports are not among
// those that the system uses for outgoing connections.
//
// A test that listens on port 0, closes the listener and passes the number on can lose the port to
// another test. A server that shares its ports, such as Caddy, does not even detect this, and gets
// half of the other test's requests. A port costs a file descriptor until the test ends. The
// package needs the abstract sockets of Linux. A test that can listen on port 0 and keep the
// listener does not need this package.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The ports lie between those of well-known servers and 32768, from where on Linux uses ports for
// outgoing connections.
const (
	first = 20_000
	ports = 12_000
	tries = 1000
)

// busAhead is the distance from the port of a Redis cluster node to the port of its cluster bus.
const busAhead = 10_000

// Address returns an address 127.0.0.1:PORT on which no server listens. No other test gets this
// port before the test has ended and the cleanups that it registered after the call have run.
func Address(t testing.TB) string {
	t.Helper()
	return address(t, ports, 0)
}

// WithBus is [Address] for a node of a Redis cluster. It also reserves the port of the node's bus,
// which is PORT + 10000.
func WithBus(t testing.TB) string {
	t.Helper()
	return WithBuses(t, 1)
}

// WithBuses is [WithBus] for n nodes with consecutive ports. It returns the address of the first
// node, and reserves the ports of all nodes and buses.
func WithBuses(t testing.TB, n int) string {
	t.Helper()
	var ahead []int
	for i := range n {
		ahead = append(ahead, i, busAhead+i)
	}
	return address(t, ports-busAhead-n, ahead...)
}

// address chooses one of the first n ports, reserves the ports at the given distances ahead of it,
// and returns its address. The list named ahead contains 0 for the port itself.
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

// reserve reserves the ports at all the distances ahead of a port, or none. It reports whether it
// reserved them.
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
			return false // reserved by another test
		}
		reservations = append(reservations, reservation)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+a))
		if err != nil {
			release()
			return false // another program listens on it
		}
		listener.Close()
	}
	t.Cleanup(release)
	return true
}
