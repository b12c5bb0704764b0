// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of connections, of each place where the bridge listens: whoever can connect could else take all its memory. One
// more is closed at once, so that whoever opened it knows.
const (
	// httpConnectionsMax is above all calls under way and all that wait, for over HTTP/1.1 each has a connection of its own;
	// one that nobody uses holds some 10 KB.
	httpConnectionsMax = 1 << 15
	// grpcConnectionsMax is a connection for each worker of some hundred Envoys; one that nobody uses holds some 80 KB.
	grpcConnectionsMax = 1 << 12
)

// fullLogEvery is the least time between two lines of the log about connections that were closed.
const fullLogEvery = time.Minute

// crowdListener closes connections beyond max at once. Safe for concurrent use.
type crowdListener struct {
	net.Listener
	max    int64
	logger *slog.Logger
	open   atomic.Int64
	told   time.Time // when the log was last told; only Accept uses it
}

// Accept implements [net.Listener].
func (l *crowdListener) Accept() (net.Conn, error) {
	for {
		connection, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.max {
			return &crowdConn{Conn: connection, open: &l.open}, nil
		}
		l.open.Add(-1)
		_ = connection.Close()
		if now := time.Now(); now.Sub(l.told) >= fullLogEvery {
			l.told = now
			l.logger.Warn("a connection is closed: as many are open as may be", "address", l.Addr().String(), "open", l.max)
		}
	}
}

// crowdConn is one that counts until it is closed.
type crowdConn struct {
	net.Conn
	open   *atomic.Int64
	closed sync.Once
}

// Close implements [net.Conn].
func (c *crowdConn) Close() error {
	c.closed.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
