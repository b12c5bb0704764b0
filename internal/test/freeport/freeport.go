// SPDX-License-Identifier: Apache-2.0

// Package freeport gives tests addresses for the servers that they start. No port is assigned to
// two tests on this machine at the same time, even in different processes, and no port is one that
// the system uses for outgoing connections.
//
// A test that listens on port 0, closes the listener and passes the number on can lose the port. A
// server that shares its ports, such as Caddy, does not even detect this, and gets half of another
// test's requests. A port costs a file descriptor until the test ends. The package needs the
// abstract sockets of Linux. A test that can listen on port 0 and keep the listener does not need
// it.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The ports are below those that Linux uses for outgoing connections, from 32768 on, and above
// those of well-known servers.
const (
	first = 20_000
	ports = 12_000
	tries = 1000
)

// busAhead is the distance from the port of a Redis cluster node to the port of its cluster bus.
const busAhead = 10_000

// Address returns an address 127.0.0.1:PORT on which no server listens. No other test gets the same
// port until this test has ended. Cleanups that the test registers after the call run before that.
func Address(t testing.TB) string {
	t.Helper()
	return address(t, ports, 0)
}

// WithBus is [Address] for a node of a Redis cluster: it also reserves the port of its bus, PORT +
// 10000.
func WithBus(t testing.TB) string {
	t.Helper()
	return WithBuses(t, 1)
}

// WithBuses is [WithBus] for n nodes. WithBuses returns the address of the first one. It also
// reserves the ports of the other nodes, which follow that of the first, and the port of each bus.
func WithBuses(t testing.TB, n int) string {
	t.Helper()
	var ahead []int
	for i := range n {
		ahead = append(ahead, i, busAhead+i)
	}
	return address(t, ports-busAhead-n, ahead...)
}

// The function address returns the address of one of the first n ports, for which the ports at all
// offsets in the list named ahead are free too.
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

// The function reserve reserves all the ports or none, and reports which.
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
