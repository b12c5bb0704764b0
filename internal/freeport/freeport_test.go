// SPDX-License-Identifier: Apache-2.0

package freeport

import (
	"net"
	"strings"
	"testing"
)

// TestNoPortTwice holds that a port is given to one test at a time, and that a server can listen at it.
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

// TestPortIsReserved holds that others cannot reserve what is given, and can when the test has ended.
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
