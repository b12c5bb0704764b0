// SPDX-License-Identifier: Apache-2.0

package main

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

	"github.com/penstock/penstock/internal/await"
)

// caller is the near end of a connection from an address.
type caller struct {
	net.Conn
	from net.Addr
}

// RemoteAddr implements [net.Conn].
func (c caller) RemoteAddr() net.Addr { return c.from }

// crowded is a crowd without a listener.
type crowded struct {
	*crowd
	*testing.T
	said *await.Journal
}

func newCrowded(t *testing.T, most int, guarded bool) *crowded {
	said := new(await.Journal)
	return &crowded{newCrowd(&pipes{}, most, guarded, said.Logger()), t, said}
}

// comes lets a connection in from an IP address, or from a Unix socket if that is "".
func (c *crowded) comes(from string) *visitor {
	near, far := net.Pipe()
	c.Cleanup(func() { far.Close() })
	addr := net.Addr(&net.UnixAddr{Name: "@", Net: "unix"})
	if from != "" {
		addr = &net.TCPAddr{IP: net.ParseIP(from), Port: 1}
	}
	v := &visitor{Conn: caller{near, addr}, crowd: c.crowd, from: originOf(addr)}
	if late := c.enter(v); late != nil {
		late.Close()
	}
	return v
}

// are fails the test if the visitors are not all open, or all closed.
func (c *crowded) are(open bool, all ...*visitor) {
	c.Helper()
	for i, v := range all {
		if err := v.SetDeadline(time.Time{}); (err == nil) != open {
			c.Errorf("visitor %d from %v: open %t, want %t", i, v.from, err == nil, open)
		}
	}
}

// TestStrangersAreDisplaced: who has made no call has an eighth of the places, and those who came last have them.
func TestStrangersAreDisplaced(t *testing.T) {
	for _, from := range []string{"192.0.2.1", "2001:db8::1", ""} {
		c := newCrowded(t, 32, true)
		guest := c.comes(from)
		guest.admit()
		var all []*visitor
		for range 100 {
			all = append(all, c.comes(from))
		}
		c.are(true, guest)
		c.are(false, all[:96]...)
		c.are(true, all[96:]...)
		all[96].probe() // so that it is not the one that was silent longest
		c.comes("192.0.2.2")
		c.are(true, all[96], all[98], all[99])
		c.are(false, all[97])
		last := c.comes("192.0.2.2")
		for range 100 {
			c.comes(from) // of an address that has many, its own go
		}
		c.are(true, last)
		if n := strings.Count(c.said.String(), "made no call yet"); n != 1 {
			t.Errorf("%d lines in the log:\n%s", n, c.said)
		}
	}
}

// TestABurstHasAllThePlaces: where nothing has to be shown, and never that of a guest.
func TestABurstHasAllThePlaces(t *testing.T) {
	c := newCrowded(t, 32, false)
	var guests, all []*visitor
	for n := range 8 {
		guests = append(guests, c.comes("192.0.2.1"))
		guests[n].admit()
	}
	for range 25 {
		all = append(all, c.comes("192.0.2.1"))
	}
	c.are(true, guests...)
	c.are(false, all[0])
	c.are(true, all[1:]...)
}

// TestGuestsAreBounded: they have what the strangers leave, one address has three quarters of that, and whoever leaves makes
// room, once.
func TestGuestsAreBounded(t *testing.T) {
	c := newCrowded(t, 32, true) // 28 guests, 21 of an address
	var guests []*visitor
	for n := range 40 {
		guests = append(guests, c.comes("192.0.2.1"))
		guests[n].admit()
	}
	c.are(true, guests[:21]...)
	c.are(false, guests[21:]...)
	for n := range 10 {
		other := c.comes("2001:db8::" + fmt.Sprint(n+1))
		other.admit()
		c.are(n < 7, other)
	}
	for range 2 { // net/http closes some twice
		guests[0].Close()
	}
	for n := range 2 {
		other := c.comes("")
		other.admit()
		other.admit()
		c.are(n == 0, other)
		guests = append(guests, other)
	}
	for from := range c.origins {
		for _, v := range guests {
			if v.from == from {
				v.Close()
			}
		}
	}
	if c.guests != 7 || c.strangers.Len() != 0 || len(c.origins) != 1 {
		t.Errorf("%d guests, %d strangers, %d addresses are on the books", c.guests, c.strangers.Len(), len(c.origins))
	}
}

// TestStrangersHaveSeconds: until their first call, and minutes where they ask for the health.
func TestStrangersHaveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 64, true)
		silent, probing, guest := c.comes("192.0.2.1"), c.comes("192.0.2.1"), c.comes("192.0.2.1")
		time.Sleep(firstCallTime - time.Second)
		probing.probe()
		guest.admit()
		c.are(true, silent, probing, guest)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		c.are(false, silent)
		silent.admit()
		silent.probe()
		c.are(true, probing, guest)
		time.Sleep(probeTime)
		synctest.Wait()
		c.are(false, silent, probing)
		c.are(true, guest)
		guest.Close()
		if len(c.origins) != 0 {
			t.Errorf("%d addresses are on the books", len(c.origins))
		}
	})
}

// TestASocketIsNeverWider: not even before it has its mode, and whatever the umask would let.
func TestASocketIsNeverWider(t *testing.T) {
	folder, err := os.MkdirTemp("", "penstock") // not t.TempDir: a socket's path is at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	defer syscall.Umask(syscall.Umask(0))
	for n, c := range []struct {
		umask       int
		mode        fs.FileMode
		born, grown fs.FileMode
	}{{0, 0o600, 0o600, 0o600}, {0, 0o660, 0o660, 0o660}, {0o022, 0o666, 0o644, 0o666}, {0o077, 0o660, 0o600, 0o660}} {
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

// TestASecondSignalEndsTheDrain: what would take an hour ends at once, and leaves no socket behind.
func TestASecondSignalEndsTheDrain(t *testing.T) {
	folder, err := os.MkdirTemp("", "penstock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	socket, rls := filepath.Join(folder, "s"), filepath.Join(folder, "r")
	r := bridging(t, "--listen", "unix:"+socket, "--rls-listen", "unix:"+rls, "--drain-delay", "1h")
	r.stop()
	r.eventually("the bridge stops")
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	r.ended <- nil
	for _, path := range []string{socket, rls} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Error("a socket is left behind", path, err)
		}
	}
}
