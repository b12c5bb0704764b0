// SPDX-License-Identifier: Apache-2.0

package listen

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

// On listens on an address. A Unix socket has the given mode, and never a wider one. A socket
// that a killed process left behind, on which no process answers, is replaced.
func On(a Address, mode fs.FileMode) (net.Listener, error) {
	listen := func() (net.Listener, error) { return net.Listen(a.Network, a.Name) }
	if a.Network == "unix" {
		listen = func() (net.Listener, error) { return listenUnix(a.Name, mode) }
	}
	listener, err := listen()
	if a.Network == "unix" && errors.Is(err, syscall.EADDRINUSE) && isAbandoned(a.Name) {
		if err = os.Remove(a.Name); err == nil {
			listener, err = listen()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %q: %w", a.Name, err)
	}
	return listener, nil
}

// listenUnix listens on a socket with the given mode.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	listener, err := listenNarrowly(path, mode)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil { // sets bits that the umask removed
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// listenNarrowly restricts the socket's mode before the socket has a name. If a chmod after Listen
// restricted it, any user whom the umask permits could connect in between.
func listenNarrowly(path string, mode fs.FileMode) (net.Listener, error) {
	narrow := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if failed := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode.Perm())) }); failed != nil {
			return failed
		}
		if errors.Is(err, syscall.EINVAL) {
			return nil // not Linux: only the later chmod takes effect
		}
		return err
	}}
	return narrow.Listen(context.Background(), "unix", path)
}

// isAbandoned reports whether path is a socket on which no process listens.
func isAbandoned(path string) bool {
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
