// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// caller is the client's end of a connection from an address.
type caller struct {
	net.Conn
	from net.Addr
}

// RemoteAddr implements [net.Conn].
func (c caller) RemoteAddr() net.Addr { return c.from }

// unopenedListener is a listener that has only an address.
type unopenedListener struct{ net.Listener }

// Addr implements [net.Listener].
func (unopenedListener) Addr() net.Addr { return &net.UnixAddr{Name: "none", Net: "unix"} }

// testLimit is a Limit without a listener.
type testLimit struct {
	*Limit
	*testing.T
	said *eventually.Journal
}

func newTestLimit(t *testing.T, most int, guarded bool) *testLimit {
	said := new(eventually.Journal)
	return &testLimit{NewLimit(unopenedListener{}, most, guarded, said.Logger()), t, said}
}

// testLimit.accept accepts a connection from an IP address. If the address is "", the connection is
// from a Unix socket.
func (c *testLimit) accept(from string) *Conn {
	near, far := net.Pipe()
	c.Cleanup(func() { far.Close() })
	addr := net.Addr(&net.UnixAddr{Name: "@", Net: "unix"})
	if from != "" {
		addr = &net.TCPAddr{IP: net.ParseIP(from), Port: 1}
	}
	v := &Conn{Conn: caller{near, addr}, limit: c.Limit, from: originOf(addr)}
	if late := c.enter(v); late != nil {
		late.Close()
	}
	return v
}

// wantOpen fails the test unless all connections are open, or all are closed.
func (c *testLimit) wantOpen(open bool, all ...*Conn) {
	c.Helper()
	for i, v := range all {
		if err := v.SetDeadline(time.Time{}); (err == nil) != open {
			c.Errorf("connection %d from %v: open %t, want %t", i, v.from, err == nil, open)
		}
	}
}

// TestConnectionsWithoutACallAreDisplaced: connections without a call have an eighth of the places,
// and the latest ones keep them.
func TestConnectionsWithoutACallAreDisplaced(t *testing.T) {
	for _, from := range []string{"192.0.2.1", "2001:db8::1", ""} {
		c := newTestLimit(t, 32, true)
		admitted := c.accept(from)
		admitted.Admit()
		var all []*Conn
		for range 100 {
			all = append(all, c.accept(from))
		}
		c.wantOpen(true, admitted)
		c.wantOpen(false, all[:96]...)
		c.wantOpen(true, all[96:]...)
		all[96].Probe() // so that another connection has been silent longest
		c.accept("192.0.2.2")
		c.wantOpen(true, all[96], all[98], all[99])
		c.wantOpen(false, all[97])
		last := c.accept("192.0.2.2")
		for range 100 {
			c.accept(from) // the address has many: one of its own connections is closed
		}
		c.wantOpen(true, last)
		if n := strings.Count(c.said.String(), "made no call yet"); n != 1 {
			t.Errorf("%d lines in the log:\n%s", n, c.said)
		}
	}
}

// TestIdleConnectionsAreDisplacedFirst: a connection that the server has not read yet, and one
// whose first call was read and not answered, outlast a flood of later connections that send
// nothing.
func TestIdleConnectionsAreDisplacedFirst(t *testing.T) {
	for _, many := range []bool{false, true} { // addresses
		c := newTestLimit(t, 64, true) // 8 new connections
		c.idleTime = 0
		open := func(from string, sends bool) *Conn {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close(); far.Close() })
			v := &Conn{Conn: caller{near, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}, limit: c.Limit}
			v.from = originOf(v.Conn.RemoteAddr())
			if late := c.enter(v); late != nil {
				late.Close()
			}
			go func() { _, _ = v.Read(make([]byte, 1)) }() // as a server does
			if sends {
				_, _ = far.Write([]byte("G"))
				eventually.Until(t, time.Minute, "the server has read", func() bool { return !v.reading.Load() })
			} else {
				eventually.Until(t, time.Minute, "the server waits for bytes", func() bool { return v.reading.Load() })
			}
			return v
		}
		called, unread := open("192.0.2.1", true), c.accept("192.0.2.1")
		answered := open("192.0.2.1", true)
		var idle []*Conn
		go func() { _, _ = answered.Write([]byte("401")) }()
		go func() { _, _ = answered.Read(make([]byte, 1)) }()
		eventually.Until(t, time.Minute, "the server waits for another call", func() bool { return answered.reading.Load() })
		for i := range 40 {
			from := "192.0.2.1"
			if many {
				from = fmt.Sprintf("198.51.100.%d", i)
			}
			idle = append(idle, open(from, false))
		}
		c.wantOpen(true, called, unread)
		c.wantOpen(true, idle[34:]...)
		c.wantOpen(false, answered)
		c.wantOpen(false, idle[:34]...)
	}
}

// TestABurstHasAllThePlaces: without tokens, new connections may take all free places, but they
// replace no established connection.
func TestABurstHasAllThePlaces(t *testing.T) {
	c := newTestLimit(t, 32, false)
	var admitted, all []*Conn
	for n := range 8 {
		admitted = append(admitted, c.accept("192.0.2.1"))
		admitted[n].Admit()
	}
	for range 25 {
		all = append(all, c.accept("192.0.2.1"))
	}
	c.wantOpen(true, admitted...)
	c.wantOpen(false, all[0])
	c.wantOpen(true, all[1:]...)
}

// TestGuestsAreBounded: established connections get the places that are not reserved for new ones,
// and one address gets three quarters of these places. A connection that closes makes room, once.
func TestGuestsAreBounded(t *testing.T) {
	c := newTestLimit(t, 32, true) // 28 established connections, 21 from one address
	var admitted []*Conn
	for n := range 40 {
		admitted = append(admitted, c.accept("192.0.2.1"))
		admitted[n].Admit()
	}
	c.wantOpen(true, admitted[:21]...)
	c.wantOpen(false, admitted[21:]...)
	for n := range 10 {
		other := c.accept("2001:db8::" + fmt.Sprint(n+1))
		other.Admit()
		c.wantOpen(n < 7, other)
	}
	for range 2 { // net/http closes some twice
		admitted[0].Close()
	}
	for n := range 2 {
		other := c.accept("")
		other.Admit()
		other.Admit()
		c.wantOpen(n == 0, other)
		admitted = append(admitted, other)
	}
	for from := range c.origins {
		for _, v := range admitted {
			if v.from == from {
				v.Close()
			}
		}
	}
	if c.established != 7 || c.newConns.Len() != 0 || len(c.origins) != 1 {
		t.Errorf("%d established and %d new connections, %d addresses are left", c.established, c.newConns.Len(), len(c.origins))
	}
}

// TestNewConnectionsMustCallSoon: a new connection has seconds for its first call, or minutes if it
// checks the health.
func TestNewConnectionsMustCallSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestLimit(t, 64, true)
		silent, probing, admitted := c.accept("192.0.2.1"), c.accept("192.0.2.1"), c.accept("192.0.2.1")
		time.Sleep(FirstCallTime - time.Second)
		probing.Probe()
		admitted.Admit()
		c.wantOpen(true, silent, probing, admitted)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.wantOpen(false, silent)
		silent.Admit()
		silent.Probe()
		c.wantOpen(true, probing, admitted)
		time.Sleep(probeTime)
		synctest.Wait()
		c.wantOpen(false, silent, probing)
		c.wantOpen(true, admitted)
		admitted.Close()
		if len(c.origins) != 0 {
			t.Errorf("%d addresses are on the books", len(c.origins))
		}
	})
}

// TestASocketIsNeverWider: a socket's mode is never wider than asked for, not even before it is
// set, and whatever the umask.
func TestASocketIsNeverWider(t *testing.T) {
	// not t.TempDir: a socket's path is at most 107 bytes
	folder, err := os.MkdirTemp("", "penstock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	defer syscall.Umask(syscall.Umask(0))
	for n, c := range []struct {
		umask       int
		mode        fs.FileMode
		born, grown fs.FileMode
	}{{mode: 0o600, born: 0o600, grown: 0o600}, {mode: 0o660, born: 0o660, grown: 0o660},
		{umask: 0o022, mode: 0o666, born: 0o644, grown: 0o666}, {umask: 0o077, mode: 0o660, born: 0o600, grown: 0o660}} {
		syscall.Umask(c.umask)
		path := filepath.Join(folder, fmt.Sprint(n))
		for want, listen := range map[*fs.FileMode]func(string, fs.FileMode) (net.Listener, error){&c.born: listenNarrowly, &c.grown: listenUnix} {
			l, err := listen(path, c.mode)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != *want {
				t.Errorf("umask %o, mode %o: it is %v, %v, want %o", c.umask, c.mode, info.Mode(), err, *want)
			}
			l.Close()
		}
	}
}
