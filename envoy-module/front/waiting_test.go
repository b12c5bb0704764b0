// SPDX-License-Identifier: Apache-2.0

package front

import (
	"io"
	"log/slog"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// countingWaker counts the calls of a request that waits.
type countingWaker struct{ waits, wakes, unwaits int }

func (w *countingWaker) Waits()   { w.waits++ }
func (w *countingWaker) Wake()    { w.wakes++ }
func (w *countingWaker) Unwaits() { w.unwaits++ }

// TestAFullQueueDenies tests that a request beyond the queue is denied at once, and that it does not
// wait: a stream that waits is not freed before it is woken.
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
	f.store.asker.stop() // it takes no more requests, as if its queue was full
	waker := new(countingWaker)
	s := f.NewStream()
	s.Headers = append(s.Headers, [2]string{":method", "GET"}, [2]string{":path", "/"},
		[2]string{":authority", "example.com"})
	if v := s.Decide("192.0.2.1:1234", nobody{}, waker); v != Respond {
		t.Errorf("verdict %d, want %d", v, Respond)
	}
	s.Release()
	if *waker != (countingWaker{waits: 1, unwaits: 1}) {
		t.Errorf("%+v, want one wait that has ended", *waker)
	}
}
