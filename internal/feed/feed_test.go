// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bufio"
	"compress/gzip"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/eventually"
)

const patience = 30 * time.Second

// taker answers like a control plane: it takes each number of a feed once, in ascending order.
type taker struct {
	t      *testing.T
	url    string
	mu     sync.Mutex
	status int // of each answer; 0 means that batches are accepted
	last   map[string]int64
	admits int64
	events int64
	keys   map[string]time.Time
}

func newTaker(t *testing.T) *taker {
	k := &taker{t: t, last: map[string]int64{}, keys: map[string]time.Time{}}
	server := httptest.NewServer(k)
	t.Cleanup(server.Close)
	k.url = server.URL
	return k
}

func (k *taker) answer(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status = status
}

func (k *taker) taken() (admitted, events int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.admits, k.events
}

func (k *taker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.status != 0 {
		w.WriteHeader(k.status)
		return
	}
	var feed string
	var number int64
	if _, err := fmt.Sscanf(r.URL.Path, "/v1/batches/%32s", &feed); err != nil {
		k.t.Error(err)
	}
	if _, err := fmt.Sscanf(strings.TrimPrefix(r.URL.Path, "/v1/batches/"+feed), "/%d", &number); err != nil {
		k.t.Error(err)
	}
	if r.Method != http.MethodPut || r.Header.Get("Authorization") != "Bearer pst_x" || r.Header.Get("Content-Encoding") != "gzip" {
		k.t.Errorf("%s %v", r.Method, r.Header)
	}
	if number <= k.last[feed] {
		return
	}
	k.last[feed] = number
	text, err := gzip.NewReader(r.Body)
	if err != nil {
		k.t.Error(err)
		return
	}
	for scanner := bufio.NewScanner(text); scanner.Scan(); {
		var l Line
		if err := json.Unmarshal(scanner.Bytes(), &l); err != nil {
			k.t.Error(err)
		}
		if l.Kind == KindUsage && l.Region != "eu" {
			k.t.Errorf("usage has the region %q", l.Region)
		}
		k.admits, k.events = k.admits+l.Admitted, k.events+l.Count
		for _, key := range l.Keys {
			k.keys[key] = l.Time
		}
	}
}

// taker.open opens a feed to the taker. A failed try is soon followed by the next one, however long
// the feed has failed before.
func (k *taker) open(folder string, m *meter.Meter, bytesMax int64) *Feed {
	k.t.Helper()
	f, err := Open(Options{Target: controlcall.Target{URL: k.url, Token: func() (string, error) { return "pst_x", nil }}, Folder: folder, Meter: m, BytesMax: bytesMax, Region: func() string { return "eu" },
		Logger: slog.New(slog.DiscardHandler), pauseMost: pauseFirst})
	if err != nil {
		k.t.Fatal(err)
	}
	return f
}

// makeEvents returns n events, each of which stands for one decision.
func makeEvents(n int) (all []events.Event) {
	for i := range n {
		all = append(all, events.Event{Time: time.Now(), Kind: events.KindDenied, Client: fmt.Sprint("user:", i), Count: 1})
	}
	return all
}

func count(m *meter.Meter, n int) {
	for i := range n {
		m.Count(&meter.Key{Policy: "p", Rule: "r", Kind: "user", Client: fmt.Sprint(i % 10)}, meter.Sum{Admitted: 1, Units: 1})
	}
}

// TestWhatWaitsOutlivesTheProcess tests that batches of a process without a control plane are sent
// by the next process, that a batch whose answer was lost counts once, and that two processes
// cannot share a spool.
func TestWhatWaitsOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	k, folder, m := newTaker(t), filepath.Join(t.TempDir(), "spool"), meter.New()
	k.answer(http.StatusServiceUnavailable)
	first := k.open(folder, m, 0)
	if _, err := Open(first.options); err == nil || !strings.Contains(err.Error(), "is used by another process") {
		t.Errorf("a second feed with the spool: %v", err)
	}
	count(m, 100)
	if n, err := first.Write(makeEvents(50)); n != 50 || err != nil {
		t.Fatal(n, err)
	}
	if err := first.Close(); err != nil { // usage is written at the end
		t.Fatal(err)
	}
	if m.On() {
		t.Error("the meter is on without a feed")
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.batch"))
	if err != nil || len(files) != 2 {
		t.Fatalf("%q %v", files, err)
	}
	sent, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	k.answer(0)
	second := k.open(folder, m, 0)
	eventually.Until(t, patience, "all is taken", func() bool { a, e := k.taken(); return a == 100 && e == 50 })
	eventually.Until(t, patience, "the spool is empty", func() bool { return second.Figures().Waiting == 0 })
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], sent, 0o600); err != nil { // as if the answer had been lost
		t.Fatal(err)
	}
	third := k.open(folder, m, 0)
	eventually.Until(t, patience, "the batch is sent again", func() bool { return third.Figures().Sent == 1 })
	if a, e := k.taken(); a != 100 || e != 50 {
		t.Errorf("%d requests and %d events are taken", a, e)
	}
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAFullSpoolKeepsUsage tests that a spool is bounded: events are dropped before it is full,
// usage stays in the meter when it is full, and all usage arrives when the control plane is back.
func TestAFullSpoolKeepsUsage(t *testing.T) {
	t.Parallel()
	k, folder, m := newTaker(t), t.TempDir(), meter.New()
	k.answer(http.StatusBadGateway)
	f := k.open(folder, m, SpoolBytesMin)
	var written int64
	for full := false; !full; {
		events := makeEvents(1000)
		for i := range events {
			events[i].Path = randomText(128) // long, so that few batches fill the spool
		}
		n, err := f.Write(events)
		written, full = written+int64(n), err != nil
	}
	if _, bytes := f.spool.state(); bytes > SpoolBytesMin*eventsPercent/100 {
		t.Errorf("the spool has %d bytes", bytes)
	}
	for _, bytes := range []int64{20_000, 1_000} { // as other usage would fill it
		for f.spool.hasRoom(bytes, 100) {
			if err := f.spool.put(batch{feed: f.id, number: f.nextNumber()}, emptyBatch(t, bytes)); err != nil {
				t.Fatal(err)
			}
		}
	}
	count(m, 100)
	f.measured(time.Now())
	k.answer(0)
	eventually.Until(t, patience, "the spool is empty", func() bool { return f.Figures().Waiting == 0 })
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if a, e := k.taken(); a != 100 || e != written {
		t.Errorf("%d requests and %d events are taken, want %d", a, e, written)
	}
}

// TestAFullDiskKeepsUsage tests that usage stays in the meter and events are returned to the caller
// while the disk of the spool is full, that no part of a batch is sent, and that everything arrives
// when the disk has room. The disk is the device /dev/full.
func TestAFullDiskKeepsUsage(t *testing.T) {
	t.Parallel()
	const full = "/dev/full"
	if _, err := os.Stat(full); err != nil {
		t.Skip(err)
	}
	k, folder, m := newTaker(t), t.TempDir(), meter.New()
	f := k.open(folder, m, 0)
	f.mu.Lock()
	for number := f.last + 1; number <= f.last+2; number++ {
		if err := os.Symlink(full, filepath.Join(folder, (&batch{feed: f.id, number: number}).name()+suffixNew)); err != nil {
			t.Fatal(err)
		}
	}
	f.mu.Unlock()
	count(m, 100)
	f.measured(time.Now())
	if n, err := f.Write(makeEvents(50)); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%d events are in the spool of a full disk: %v", n, err)
	}
	if a, e := k.taken(); a != 0 || e != 0 {
		t.Errorf("%d requests and %d events are taken from a full disk", a, e)
	}
	f.measured(time.Now())
	if n, err := f.Write(makeEvents(50)); n != 50 || err != nil {
		t.Errorf("%d events are in the spool of a disk with room: %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if a, e := k.taken(); a != 100 || e != 50 {
		t.Errorf("%d requests and %d events are taken, want 100 and 50", a, e)
	}
}

// nextNumber returns the number of a batch that a test writes itself.
func (f *Feed) nextNumber() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last++
	return f.last
}

// randomText returns a text that gzip cannot make shorter than n bytes.
func randomText(n int) string {
	text := make([]byte, n)
	_, _ = rand.Read(text) // it cannot fail
	return hex.EncodeToString(text)
}

// emptyBatch returns a batch of about the given number of bytes, without decisions.
func emptyBatch(t *testing.T, bytes int64) []byte {
	var text strings.Builder
	w, err := gzip.NewWriterLevel(&text, gzip.NoCompression)
	if err != nil {
		t.Fatal(err)
	}
	line := `{"reason":"` + strings.Repeat("x", int(bytes)-100) + "\"}\n"
	if _, err := w.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return []byte(text.String())
}

// TestABatchThatCannotBeReadIsKeptAside tests that an unreadable batch does not delay the batches
// after it, and that a wrong token does.
func TestABatchThatCannotBeReadIsKeptAside(t *testing.T) {
	t.Parallel()
	k, folder := newTaker(t), t.TempDir()
	k.answer(http.StatusForbidden)
	f := k.open(folder, nil, 0)
	if _, err := f.Write(makeEvents(1)); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the batch is tried", func() bool { return f.Figures().Failed > 0 })
	if f.Figures().Waiting != 1 {
		t.Error("a batch is dropped because of the token")
	}
	k.answer(http.StatusUnprocessableEntity)
	eventually.Until(t, patience, "the batch is rejected", func() bool { return f.Figures().Rejected == 1 })
	k.answer(0)
	if _, err := f.Write(makeEvents(3)); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, patience, "the next batch is taken", func() bool { _, e := k.taken(); return e == 3 })
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(folder, "*.rejected")); err != nil || len(files) != 1 {
		t.Errorf("%q %v", files, err)
	}
}

// TestOptionsAreChecked tests that a feed that could not work does not open.
func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]Options{
		"is no URL":    {Target: controlcall.Target{URL: "control:7070"}, Folder: "x"},
		"without a us": {Target: controlcall.Target{URL: "http://me:secret@control"}, Folder: "x"},
		"is missing":   {Target: controlcall.Target{URL: "http://control"}},
		"too small":    {Target: controlcall.Target{URL: "http://control"}, Folder: "x", BytesMax: 1},
	} {
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
