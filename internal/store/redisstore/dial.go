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

// lazyConn is a connection that is dialed by its first Write, under the deadline of that Write.
//
// The pool of go-redis dials in its own goroutine, which outlives both the caller and Close. After
// some failed dials, the pool tries only once a second, in yet another goroutine. A recovered Redis
// would go unnoticed for a second. With lazyConn the pool's dial succeeds at once, the real dial
// happens where the deadline is known, and Close ends it.
//
// The connection rejects replies that are larger than a working server sends (see bound). A process
// with thousands of goroutines and few processors can itself be late, so lazyConn extends
// deadlines. The type readDeadline describes how Read extends them; Write extends each deadline
// one time.
type lazyConn struct {
	dial func(context.Context) (net.Conn, error)
	live atomic.Pointer[net.Conn] // nil until the first Write
	gone func(*lazyConn)          // called by Close
	late func()                   // called when a reply has taken half of the timeout; may be nil

	timeout time.Duration
	// how long a reply may take if the deadline has already passed when the request is written
	patience time.Duration
	bound    bound       // checks the replies; only Read uses this field
	asked    atomic.Bool // whether something was written since bound was reset
	reading  readDeadline
	writing  atomic.Int64 // the deadline of Write in Unix nanoseconds; 0 if there is none
	extended atomic.Int64 // the last deadline that Write extended

	mu            sync.Mutex
	writeDeadline time.Time
	cancel        context.CancelFunc // cancels the current dial
	closed        bool
}

// plainConn is a lazyConn without TLS. The pool may look at its socket to see whether the server
// has closed the connection. With TLS the pool must not do this, because unread bytes can belong to
// the TLS protocol.
type plainConn struct{ *lazyConn }

var (
	_ net.Conn     = (*lazyConn)(nil)
	_ syscall.Conn = (*plainConn)(nil)

	errNotConnected = errors.New("not connected yet")
)

// dialer creates the connections of one client and can close them all at once. The Close of
// go-redis would close connections that are in use, and log that.
type dialer struct {
	dial    func(context.Context) (net.Conn, error)
	plain   bool
	timeout time.Duration // the timeout of a batch
	// patience is how long a batch waits for a late reply.
	patience time.Duration
	late     func() // called when a reply has taken half of the timeout; may be nil
	// askDNS connects to a DNS server; nil uses the system's resolver.
	askDNS func(ctx context.Context, network, address string) (net.Conn, error)

	mu     sync.Mutex
	conns  map[*lazyConn]struct{}
	closed bool
}

func newDialer(a address, config *tls.Config, timeout, patience time.Duration) *dialer {
	d := &dialer{plain: config == nil, timeout: timeout, patience: patience, conns: map[*lazyConn]struct{}{}}
	d.dial = func(ctx context.Context) (net.Conn, error) {
		// Each dial has its own resolver. Concurrent look-ups of one name in a shared resolver
		// share one DNS query. If that query is lost, all of them wait until it is repeated, by
		// default after 5 s, even if DNS has recovered.
		socket := &net.Dialer{KeepAlive: 30 * time.Second, Resolver: &net.Resolver{PreferGo: d.askDNS != nil, Dial: d.askDNS}}
		if d.plain {
			return socket.DialContext(ctx, a.network, a.target)
		}
		return (&tls.Dialer{NetDialer: socket, Config: config}).DialContext(ctx, a.network, a.target)
	}
	return d
}

// dialer.open is the Dialer function of go-redis.
func (d *dialer) open(context.Context, string, string) (net.Conn, error) {
	lazy := d.lazy()
	lazy.late = d.late
	if d.plain {
		return &plainConn{lazy}, nil
	}
	return lazy, nil
}

// dialer.lazy returns a connection that dialer.close will close.
func (d *dialer) lazy() *lazyConn {
	lazy := &lazyConn{dial: d.dial, gone: d.forget, timeout: d.timeout, patience: d.patience}
	d.mu.Lock()
	defer d.mu.Unlock()
	lazy.closed = d.closed
	d.conns[lazy] = struct{}{}
	return lazy
}

func (d *dialer) forget(c *lazyConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// dialer.close closes all connections; connections that are opened later are closed immediately.
func (d *dialer) close() {
	d.mu.Lock()
	d.closed = true
	conns := slices.Collect(maps.Keys(d.conns))
	d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
}

// Write dials if necessary and writes. If the deadline has passed before the call, Write extends
// the deadline, because with TLS a failed Write cannot be repeated. The error is an unwrittenError
// if nothing of a batch was written.
func (c *lazyConn) Write(p []byte) (n int, err error) {
	first := !c.asked.Swap(true)
	if n, err = c.write(p); first && n == 0 && err != nil {
		err = &unwrittenError{err}
	}
	return n, err
}

// unwrittenError is the error of a Write that wrote nothing. After this error, nothing else is
// written to the connection.
type unwrittenError struct{ error }

func (e *unwrittenError) Unwrap() error { return e.error }

func (c *lazyConn) write(p []byte) (n int, err error) {
	conn := c.live.Load()
	if conn == nil {
		if conn, err = c.connect(); err != nil {
			return 0, err
		}
	} else if at := c.writing.Load(); at != 0 {
		if now := time.Now(); now.UnixNano() >= at && c.extended.Swap(at) != at {
			_ = (*conn).SetWriteDeadline(now.Add(c.timeout / readTurns))
		}
	}
	return (*conn).Write(p)
}

func (c *lazyConn) connect() (*net.Conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, net.ErrClosed
	}
	deadline := c.writeDeadline
	if deadline.IsZero() {
		deadline = time.Now().Add(TimeoutMax)
	}
	if c.patience > 0 { // half of the patience is left for the replies
		if within := time.Now().Add(max(c.timeout, c.patience/2)); within.Before(deadline) {
			deadline = within
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c.cancel = cancel
	c.mu.Unlock()

	conn, err := c.dialBy(ctx, deadline)

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

// dialBy dials until a deadline. Like the deadline of a Read, it passes later if this process is
// late: see [readDeadline].
func (c *lazyConn) dialBy(ctx context.Context, deadline time.Time) (net.Conn, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline.Add(readLateMax))
	defer cancel()
	var within readDeadline
	var expired atomic.Bool
	end, ok := within.set(deadline, time.Now(), c.timeout, c.patience), true
	go func() {
		for ok {
			select {
			case <-time.After(time.Until(end)):
				end, ok = within.next(time.Now())
			case <-ctx.Done():
				return
			}
			if c.late != nil && within.firstEnded() {
				c.late()
			}
		}
		expired.Store(true)
		cancel()
	}()
	conn, err := c.dial(ctx)
	if err != nil && expired.Load() {
		err = &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	}
	return conn, err
}

// Read reads from the connection; before the first Write it fails.
func (c *lazyConn) Read(p []byte) (int, error) {
	live := c.live.Load()
	if live == nil {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := (*live).Read(p)
	for n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		end, ok := c.reading.next(time.Now())
		if !ok || (*live).SetReadDeadline(end) != nil {
			break
		}
		if c.late != nil && c.reading.firstEnded() {
			c.late()
		}
		n, err = (*live).Read(p)
	}
	if c.asked.Load() && c.asked.Swap(false) {
		c.bound.reset()
	}
	if bad := c.bound.see(p[:n]); bad != nil {
		return 0, bad
	}
	return n, err
}

// Close closes the connection, or prevents it from being dialed.
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
	end := c.reading.set(t, time.Now(), c.timeout, c.patience)
	if live := c.live.Load(); live != nil {
		return (*live).SetReadDeadline(end)
	}
	return nil
}

// SetWriteDeadline also bounds the dial.
func (c *lazyConn) SetWriteDeadline(t time.Time) error {
	at := int64(0)
	if !t.IsZero() {
		at = t.UnixNano()
	}
	c.writing.Store(at)
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

// SyscallConn returns the socket for the pool's health check.
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
