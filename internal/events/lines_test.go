// SPDX-License-Identifier: Apache-2.0

package events

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func makeEvents(n int) (all []Event) {
	for i := range n {
		all = append(all, Event{Time: time.Unix(1_800_000_000, 0), Kind: KindDenied, Client: "user:" + strconv.Itoa(i), Count: 1})
	}
	return all
}

// limitedWriter is a writer that accepts a number of bytes and then fails.
type limitedWriter struct {
	bytes.Buffer
	room int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	n := min(l.room, len(p))
	l.room -= n
	l.Buffer.Write(p[:n])
	if n < len(p) {
		return n, errors.New("no space left on device")
	}
	return n, nil
}

// TestTornLine: a write that ends anywhere damages at most the line in which it ends, and the
// number of whole lines is reported.
func TestTornLine(t *testing.T) {
	all := makeEvents(3)
	whole := 0
	for i := range all {
		whole += len(all[i].AppendJSON(nil)) + 1
	}
	for room := range whole + 1 {
		w := &limitedWriter{room: room}
		l := &lines{w: w}
		before, err := l.Write(all)
		if got := strings.Count(w.String(), "\n"); before != got || (err == nil) != (room == whole) {
			t.Fatalf("room for %d bytes: %d written, %v, want %d", room, before, err, got)
		}
		w.room = 1 << 20
		if n, err := l.Write(all); n != 3 || err != nil {
			t.Fatal(n, err)
		}
		damaged, good := 0, 0
		for line := range strings.Lines(w.String()) {
			if json.Valid([]byte(line)) {
				good++
			} else {
				damaged++
			}
		}
		if good < before+3 || damaged > 1 {
			t.Fatalf("room for %d bytes: %d good lines, %d damaged:\n%s", room, good, damaged, w)
		}
	}
}

// TestFile: events are appended, a file that was renamed is made anew, and the error for a path
// that cannot be opened names the valid forms.
func TestFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "events.ndjson")
	if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	sink, closer, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func() {
		if n, err := sink.Write(makeEvents(2)); n != 2 || err != nil {
			t.Fatal(n, err)
		}
	}
	write()
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write()
	write()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write()
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{path + ".1": 3, path: 2} {
		text, err := os.ReadFile(name)
		if err != nil || bytes.Count(text, []byte("\n")) != want {
			t.Errorf("%s has %q, %v, want %d lines", name, text, err, want)
		}
	}
	for to, want := range map[string]string{
		"sdtout":                    "write stdout, a path with a slash",
		folder:                      "is a directory",
		folder + "/absent/x.ndjson": "write a path in a directory",
		"syslog:http://h:1":         "write udp://HOST:PORT",
		"syslog:tcp://h":            "write udp://HOST:PORT",
	} {
		if _, _, err := Open(to); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", to, err, want)
		}
	}
}

// TestSyslog: over TCP each event is a message framed by its length, and over UDP it is a datagram.
// The sink reconnects to a server that has restarted.
func TestSyslog(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sink, closer, err := Open("syslog:tcp://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := sink.Write(makeEvents(2)); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	for i := range 2 {
		size, err := r.ReadString(' ')
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(size))
		if err != nil {
			t.Fatal(err)
		}
		message := make([]byte, n)
		if _, err := io.ReadFull(r, message); err != nil {
			t.Fatal(err)
		}
		head, text, ok := strings.Cut(string(message), " - ")
		if !ok || !strings.HasPrefix(head, "<30>1 2027-01-15T08:00:00.000Z ") || !json.Valid([]byte(text)) ||
			!strings.Contains(text, "user:"+strconv.Itoa(i)) {
			t.Errorf("message %q", message)
		}
	}
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	sink, closer, err = Open("syslog:udp://" + packets.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := sink.Write(makeEvents(1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	datagram := make([]byte, 2048)
	n, _, err := packets.ReadFrom(datagram)
	if err != nil || !bytes.Contains(datagram[:n], []byte(`denied - {"time":`)) {
		t.Errorf("datagram %q, %v", datagram[:n], err)
	}
	if err := closer.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestSyslogIsClosedWhileItWrites: a log that is detached does not wait for a server that hangs, so
// the sink is closed during a write. The write ends, and no new connection is made.
func TestSyslogIsClosedWhileItWrites(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	sink, closer, err := Open("syslog:tcp://" + listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := sink.Write(makeEvents(1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	ended := make(chan error)
	go func() {
		for {
			if _, err := sink.Write(makeEvents(1000)); err != nil { // nobody reads
				ended <- err
				return
			}
		}
	}()
	if err := closer.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the write ends with %v", err)
	}
	if n, err := sink.Write(makeEvents(1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end, %d events are written: %v", n, err)
	}
}
