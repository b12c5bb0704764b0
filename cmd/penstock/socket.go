// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// listenOn listens at an address. A Unix socket that a killed process left behind is taken over: one that nobody answers at.
func listenOn(network, address string) (net.Listener, error) {
	listener, err := net.Listen(network, address)
	if network == "unix" && errors.Is(err, syscall.EADDRINUSE) && abandoned(address) {
		if err = os.Remove(address); err == nil {
			listener, err = net.Listen(network, address)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", address, err)
	}
	return listener, nil
}

// abandoned reports whether there is a socket and nobody who listens.
func abandoned(path string) bool {
	const patience = time.Second
	if file, err := os.Lstat(path); err != nil || file.Mode().Type() != os.ModeSocket {
		return false
	}
	connection, err := net.DialTimeout("unix", path, patience)
	if err == nil {
		connection.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
