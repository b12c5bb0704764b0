// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/await"
)

// TestConnectionsAreBounded: one too many is closed at once, and whoever closes one makes room, once.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 3
	said := new(await.Journal)
	e := &entrances{}
	l, err := e.open(entrance{"tcp", "127.0.0.1:0"}, most, said.Logger())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inside := make(chan net.Conn, most+1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "welcome")
			inside <- c
		}
	}()
	// connects returns what a connection is told; "" if it is closed.
	connects := func() string {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line
	}
	for n := range most {
		if connects() == "" {
			t.Errorf("connection %d of %d is closed", n+1, most)
		}
	}
	for range 2 {
		if connects() != "" {
			t.Errorf("more than %d are let in", most)
		}
	}
	first := <-inside
	for range 2 { // net/http closes some twice
		first.Close()
	}
	if connects() == "" || connects() != "" {
		t.Error("one was closed: want room for one")
	}
	if n := strings.Count(said.String(), "as many are open as may be"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, said)
	}
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
