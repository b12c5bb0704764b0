// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// lazyConn is a connection that is dialled by its first Write, under that Write's deadline.
//
// go-redis' pool dials in a goroutine of its own that outlives both the caller and Close. After some failed dials it
// stops trying, but for once a second in another goroutine, so that a Redis that is back would go unnoticed for a second.
// With lazyConn the pool's dial always succeeds at once, the true one happens where the deadline is known, and Close
// ends it.
//
// It reads no more of a reply than a server that counts can have to say (see bound). And it looks once more when a deadline
// has passed: a process with thousands of goroutines and few processors may be too late itself, to send or to read.
type lazyConn struct {
	dial func(context.Context) (net.Conn, error)
	live atomic.Pointer[net.Conn] // nil until dialled
	gone func(*lazyConn)          // told of Close

	timeout time.Duration // what an answer may take from the end of a Write, if that was late
	bound   bound         // of the replies; only Read uses it
	asked   atomic.Bool   // something was written since bound was reset
	wrote   atomic.Int64  // when the last Write ended, in Unix nanoseconds
	reading extendable    // the deadline of Read
	writing extendable    // the deadline of Write

	mu            sync.Mutex
	writeDeadline time.Time
	cancel        context.CancelFunc // of the dial under way
	closed        bool
}

// extendable is a deadline that is extended once.
type extendable struct {
	at       atomic.Int64 // Unix nanoseconds; 0: none
	extended atomic.Bool
}

// set sets another deadline. It may be extended again, unless it is the same one.
func (e *extendable) set(t time.Time) {
	at := int64(0)
	if !t.IsZero() {
		at = t.UnixNano()
	}
	if e.at.Swap(at) != at {
		e.extended.Store(false)
	}
}

// extend reports whether the deadline may be extended, which it may once.
func (e *extendable) extend() bool { return !e.extended.Swap(true) }

// extensionOf is which part of the timeout a deadline is extended by that has passed.
const extensionOf = 5

// plainConn is a lazyConn without TLS. The pool can ask its socket whether the server has closed it; with TLS it must
// not, as unread bytes there may be the protocol's own.
type plainConn struct{ *lazyConn }

var (
	_ net.Conn     = (*lazyConn)(nil)
	_ syscall.Conn = (*plainConn)(nil)

	errNotConnected = errors.New("not connected yet")
)

// dialer makes the connections of one client and can end them all at once. go-redis' own Close would close them under
// the hands of those who use them, and log that.
type dialer struct {
	dial    func(context.Context) (net.Conn, error)
	plain   bool
	timeout time.Duration // of a batch
	// askDNS connects with a DNS server; nil leaves that to the system.
	askDNS func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	conns  map[*lazyConn]struct{}
	closed bool
}

func newDialer(a address, config *tls.Config, timeout time.Duration) *dialer {
	d := &dialer{plain: config == nil, timeout: timeout, conns: map[*lazyConn]struct{}{}}
	d.dial = func(ctx context.Context) (net.Conn, error) {
		// A resolver of its own: those who ask a common one for a name at once share a question, so that one that DNS does not
		// answer would hold up others for as long as it is repeated, some 10 s, when DNS is back long since.
		socket := &net.Dialer{KeepAlive: 30 * time.Second, Resolver: &net.Resolver{PreferGo: d.askDNS != nil, Dial: d.askDNS}}
		if d.plain {
			return socket.DialContext(ctx, a.network, a.target)
		}
		return (&tls.Dialer{NetDialer: socket, Config: config}).DialContext(ctx, a.network, a.target)
	}
	return d
}

// open is what go-redis calls for a connection.
func (d *dialer) open(context.Context, string, string) (net.Conn, error) {
	var conn net.Conn
	lazy := &lazyConn{dial: d.dial, gone: d.forget, timeout: d.timeout}
	conn = lazy
	if d.plain {
		conn = &plainConn{lazy}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	lazy.closed = d.closed
	d.conns[lazy] = struct{}{}
	return conn, nil
}

func (d *dialer) forget(c *lazyConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// close ends all connections; those opened from now on are closed from the start.
func (d *dialer) close() {
	d.mu.Lock()
	d.closed = true
	conns := slices.Collect(maps.Keys(d.conns))
	d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// Write dials if need be and writes. A deadline that has passed by the time that it is called is extended: with TLS a Write
// that failed cannot be repeated.
func (c *lazyConn) Write(p []byte) (n int, err error) {
	c.asked.Store(true)
	conn := c.live.Load()
	if conn == nil {
		if conn, err = c.connect(); err != nil {
			return 0, err
		}
	} else if at := c.writing.at.Load(); at != 0 {
		if now := time.Now(); now.UnixNano() >= at && c.writing.extend() {
			_ = (*conn).SetWriteDeadline(now.Add(c.timeout / extensionOf))
		}
	}
	n, err = (*conn).Write(p)
	c.wrote.Store(time.Now().UnixNano())
	return n, err
}

func (c *lazyConn) connect() (*net.Conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, net.ErrClosed
	}
	deadline := c.writeDeadline
	ctx, cancel := context.Background(), context.CancelFunc(nil)
	if deadline.IsZero() {
		ctx, cancel = context.WithTimeout(ctx, TimeoutMax)
	} else {
		ctx, cancel = context.WithDeadline(ctx, deadline)
	}
	defer cancel()
	c.cancel = cancel
	c.mu.Unlock()

	conn, err := c.dial(ctx)

	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = nil
	if err != nil {
		return nil, err
	}
	if c.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	if err := conn.SetWriteDeadline(c.writeDeadline); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.live.Store(&conn)
	return &conn, nil
}

// Read reads; there is nothing to read before the first Write. When its deadline has passed, it looks once more.
func (c *lazyConn) Read(p []byte) (int, error) {
	live := c.live.Load()
	if live == nil {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := (*live).Read(p)
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.reading.extend() {
		if until := c.lastLook(); (*live).SetReadDeadline(until) == nil {
			n, err = (*live).Read(p)
		}
	}
	if c.asked.Load() && c.asked.Swap(false) {
		c.bound.reset()
	}
	if bad := c.bound.see(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// lastLook returns until when an answer is awaited whose deadline has passed: a little longer, and if it was sent late, as
// long as an answer may take.
func (c *lazyConn) lastLook() time.Time {
	until := time.Now().Add(c.timeout / extensionOf)
	if late := time.Unix(0, c.wrote.Load()).Add(c.timeout); late.After(until) {
		return late
	}
	return until
}

// Close closes the connection, or keeps it from being made.
func (c *lazyConn) Close() error {
	c.gone(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.cancel != nil {
		c.cancel()
	}
	if live := c.live.Load(); live != nil {
		return (*live).Close()
	}
	return nil
}

// SetDeadline sets both deadlines.
func (c *lazyConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline has no effect before the first Write.
func (c *lazyConn) SetReadDeadline(t time.Time) error {
	c.reading.set(t)
	if live := c.live.Load(); live != nil {
		return (*live).SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline also bounds the dial.
func (c *lazyConn) SetWriteDeadline(t time.Time) error {
	c.writing.set(t)
	if live := c.live.Load(); live != nil {
		return (*live).SetWriteDeadline(t)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeDeadline = t
	return nil
}

// LocalAddr returns nil before the first Write.
func (c *lazyConn) LocalAddr() net.Addr {
	if live := c.live.Load(); live != nil {
		return (*live).LocalAddr()
	}
	return nil
}

// RemoteAddr returns nil before the first Write.
func (c *lazyConn) RemoteAddr() net.Addr {
	if live := c.live.Load(); live != nil {
		return (*live).RemoteAddr()
	}
	return nil
}

// SyscallConn gives the pool's health check the socket.
func (c *plainConn) SyscallConn() (syscall.RawConn, error) {
	live := c.live.Load()
	if live == nil {
		return nil, errNotConnected
	}
	socket, ok := (*live).(syscall.Conn)
	if !ok {
		return nil, errNotConnected
	}
	return socket.SyscallConn()
}
