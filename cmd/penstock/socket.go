// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// listenOn listens at an address. A Unix socket has the mode, and never a wider one. One that a killed process left behind is
// taken over: one that nobody answers at.
func listenOn(network, address string, mode fs.FileMode) (net.Listener, error) {
	listen := func() (net.Listener, error) { return net.Listen(network, address) }
	if network == "unix" {
		listen = func() (net.Listener, error) { return listenUnix(address, mode) }
	}
	listener, err := listen()
	if network == "unix" && errors.Is(err, syscall.EADDRINUSE) && abandoned(address) {
		if err = os.Remove(address); err == nil {
			listener, err = listen()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", address, err)
	}
	return listener, nil
}

// listenUnix listens at a socket of that mode.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	listener, err := listenNarrowly(path, mode)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil { // with what the umask has taken away
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// listenNarrowly gives the socket no more than its mode before it has a name: between listening and a later chmod, anybody could
// connect whom the umask lets.
func listenNarrowly(path string, mode fs.FileMode) (net.Listener, error) {
	narrow := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode.Perm())) }); failed != nil {
			return failed
		}
		if errors.Is(err, syscall.EINVAL) {
			return nil // not Linux: there only the later chmod counts
		}
		return err
	}}
	return narrow.Listen(context.Background(), "unix", path)
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
