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

// Address returns an address of this machine, 127.0.0.1:PORT, at which nobody listens. It is the test's until it has ended and
// what it had started afterwards is cleaned up.
func Address(t testing.TB) string {
	t.Helper()
	for range tries {
		port := first + rand.IntN(ports)
		reservation, err := net.Listen("unix", "@penstock-test-port-"+strconv.Itoa(port))
		if err != nil {
			continue // another test's
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			reservation.Close()
			continue // somebody else's
		}
		listener.Close()
		t.Cleanup(func() { reservation.Close() })
		return address
	}
	t.Fatalf("no free port from %d to %d in %d tries", first, first+ports-1, tries)
	return ""
}
