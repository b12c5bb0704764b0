// SPDX-License-Identifier: Apache-2.0

package freeport

import (
	"net"
	"strconv"
	"strings"
	"testing"
)

// TestNoPortTwice checks that Address does not return the same port twice, and that a server can
// listen on each port.
func TestNoPortTwice(t *testing.T) {
	given := map[string]bool{}
	for range 200 {
		address := Address(t)
		if given[address] {
			t.Fatalf("%s was given twice", address)
		}
		given[address] = true
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
	}
}

// TestPortIsReserved checks that a port stays reserved until the test that got it has ended.
func TestPortIsReserved(t *testing.T) {
	var name string
	t.Run("while it lasts", func(t *testing.T) {
		_, port, _ := strings.Cut(Address(t), ":")
		name = "@penstock-test-port-" + port
		if l, err := net.Listen("unix", name); err == nil {
			l.Close()
			t.Error("the port was reserved twice")
		}
	})
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatalf("the port stays reserved: %v", err)
	}
	l.Close()
}

// TestBusIsReserved checks that the port of a cluster's bus is not given to another test.
func TestBusIsReserved(t *testing.T) {
	_, port, _ := strings.Cut(WithBuses(t, 2), ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []int{n, n + 1, n + 10_000, n + 10_001} {
		if l, err := net.Listen("unix", "@penstock-test-port-"+strconv.Itoa(p)); err == nil {
			l.Close()
			t.Errorf("port %d of %s is not reserved", p, port)
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(p))
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
