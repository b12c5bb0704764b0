// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// Address is an address to listen on, for [On]. The zero Address means no address.
type Address struct{ Network, Name string }

// Parse parses host:port or unix:PATH, and reports whether other machines can reach the address.
// Parse resolves a host name now, so that a process listens on the address that was checked.
func Parse(text string) (a Address, beyond bool, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if path == "" {
			return a, false, errors.New("unix: has no path; write unix:/run/penstock.sock")
		}
		return Address{"unix", path}, false, nil
	}
	tcp, err := net.ResolveTCPAddr("tcp", text)
	if err != nil {
		return a, false, fmt.Errorf("%w; write host:port, or unix:PATH", err)
	}
	network := "tcp"
	if tcp.IP.To4() != nil {
		network = "tcp4" // "tcp" would turn 0.0.0.0 into [::], which accepts IPv6 too
	}
	return Address{network, tcp.String()}, !tcp.IP.IsLoopback(), nil
}
