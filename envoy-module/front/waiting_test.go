// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// countingWaker counts the calls of a request that waits.
type countingWaker struct{ waits, wakes, unwaits int }

func (w *countingWaker) Waits()        { w.waits++ }
func (w *countingWaker) Wake()         { w.wakes++ }
func (w *countingWaker) Unwaits()      { w.unwaits++ }
func (*countingWaker) Announces() bool { return false }

// TestAFullQueueDenies tests that a request is denied at once if the queue is full, and that
// Unwaits is then called. Otherwise the stream would count as waiting and never be freed.
func TestAFullQueueDenies(t *testing.T) {
	server := redistest.Start(t)
	settings, err := ReadSettings([]byte("name: queue\nstore: {type: redis, url: \"" + server.URL() +
		"\"}\nrules: [{name: all, limit: 5/1h}]"))
	if err != nil {
		t.Fatal(err)
	}
	p := NewProcess(slog.New(slog.NewTextHandler(io.Discard, nil)))
	f, err := p.Open(settings)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.store.asker.stop() // it takes no more requests, as if the queue were full
	waker := new(countingWaker)
	s := f.NewStream()
	s.Headers = append(s.Headers, [2]string{":method", "GET"}, [2]string{":path", "/"},
		[2]string{":authority", "example.com"})
	if v := s.Decide("192.0.2.1:1234", emptyHost{}, waker); v != Respond {
		t.Errorf("verdict %d, want %d", v, Respond)
	}
	s.Release()
	if *waker != (countingWaker{waits: 1, unwaits: 1}) {
		t.Errorf("%+v, want one wait that has ended", *waker)
	}
}

// openFrontWithSilentDirectory returns a front whose directory knows only the client "first". It
// also returns the directory's Redis, which does not answer until Resume is called.
func openFrontWithSilentDirectory(t *testing.T) (*Front, *redistest.Server) {
	t.Helper()
	redis := redistest.Start(t)
	f := openFront(t, "name: shop\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: all, limit: 5/31d}]\n"+
		"directory: {}\nstore: {type: redis, url: \""+redis.URL()+"\", timeout: 10s}\n")
	ask(t, f, request("/", "x-user", "first"))
	redis.Pause()
	return f, redis
}

// TestUnknownClientsAreReadTogether tests that the clients of many requests with made-up names are
// read from the directory in a few reads, not in one read each. Otherwise requests of other clients
// would wait for all these reads.
func TestUnknownClientsAreReadTogether(t *testing.T) {
	f, redis := openFrontWithSilentDirectory(t)
	const clients = 8 * askersMax
	before := f.store.directory.Figures().Reads.Load()
	var bells []*bell
	for i := range clients {
		s, b := f.NewStream(), newBell()
		s.Headers = append(s.Headers, request("/", "x-user", fmt.Sprintf("u%d", i))...)
		if v := s.Decide(fmt.Sprintf("192.0.2.%d:4711", i), emptyHost{}, b); v != Wait {
			t.Fatalf("verdict %d", v)
		}
		bells = append(bells, b)
		t.Cleanup(s.Release)
	}
	redis.Resume()
	for _, b := range bells {
		<-b.rung
	}
	// Usually there are four reads: the one that is under way, one for all other clients, and two
	// for "first", which is read again as soon as the directory follows changes. On a busy machine,
	// some clients arrive after a read has begun.
	if n := f.store.directory.Figures().Reads.Load() - before; n > askersMax/2 {
		t.Errorf("%d reads for %d clients, want at most %d", n, clients, askersMax/2)
	}
}

// TestABatchWaitsOnceForTheDirectory tests that all unknown clients of a batch wait for the
// directory until the same instant, and that no client is admitted without its record.
func TestABatchWaitsOnceForTheDirectory(t *testing.T) {
	f, redis := openFrontWithSilentDirectory(t)
	defer redis.Resume()
	for _, user := range []string{"ann", "bob"} {
		s, later := f.NewStream(), newBell()
		later.announces = true // no goroutine takes the request
		t.Cleanup(s.Release)
		s.Headers = append(s.Headers, request("/", "x-user", user)...)
		if v := s.Decide(client, emptyHost{}, later); v != Wait {
			t.Fatalf("verdict %d", v)
		}
	}
	b := batch{asker: f.store.asker}
	b.streams = b.asker.next(nil)
	var first context.Context
	for i, s := range slices.Clone(b.streams) {
		if b.begin(i, s); i == 0 {
			first = b.reading
		}
		if v := s.Woken(); v != Respond || first == nil || b.reading != first {
			t.Errorf("request %d: verdict %d; it waited by %v, and the first one by %v", i, v, b.reading, first)
		}
	}
	if b.reset(); len(b.streams) != 2 || b.reading != nil || first.Err() == nil {
		t.Errorf("%d requests; the wait does not end with the batch: %v", len(b.streams), b.reading)
	}
}
