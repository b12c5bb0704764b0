// SPDX-License-Identifier: Apache-2.0

package front

import (
	"bytes"
	"compress/gzip"
	"io"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/usage/inflate"
)

// compressed returns an event stream of 4 MiB, compressed with gzip. Its last event contains the
// cost.
func compressed(t testing.TB, cost string) []byte {
	t.Helper()
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	const event = "data: {\"choices\":[{\"delta\":{\"content\":\" water\"}}]}\n\n"
	_, err := io.WriteString(w, strings.Repeat(event, (4<<20)/len(event))+"data: {\"usage\":"+cost+"}\n\n")
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return body.Bytes()
}

// respondCompressed admits a request, and reads its whole response, which is a compressed event
// stream.
func respondCompressed(t testing.TB, f *Front, body []byte) {
	t.Helper()
	s := f.NewStream()
	s.Headers = append(s.Headers, request("/")...)
	if v := s.Decide(client, emptyHost{}, newBell()); v != Continue {
		t.Fatalf("verdict %d", v)
	}
	settling := s.Settling()
	s.Release()
	settling.Begin(&Beginning{Headers: [][2]string{{":status", "200"}, {"content-type", "text/event-stream"},
		{"content-encoding", "gzip"}}, Complete: true, Details: "via_upstream", Attempts: 1})
	settling.Body(body, true)
	settling.End()
}

// remaining sends a request, and returns the number of units that remain after it.
func remaining(t testing.TB, f *Front) int {
	t.Helper()
	_, fields, _ := ask(t, f, request("/"))
	n, err := strconv.Atoi(fields[response.FieldRemaining])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHooksDoNotDecompress tests that the hooks of a response do not wait until its body is
// decompressed. The costs of two compressed bodies are charged later. A third body, for whose
// address the queue has no more places, is not read.
func TestHooksDoNotDecompress(t *testing.T) {
	f := openFront(t, "name: shop\nrules: [{name: all, limit: 1000000000/31d fixed_window, cost_after: {json: usage, estimate: 1, default: 1}}]\n")
	body, queue := compressed(t, "1000000"), &f.process.inflating
	charged := func() int { return (1_000_000_000 - remaining(t, f)) / 1_000_000 }
	start := make(chan bool)
	begin := sync.OnceFunc(func() { close(start) })
	t.Cleanup(begin)
	for range runtime.GOMAXPROCS(0) {
		queue.Add(0, func() { <-start })
	}
	for range 2 {
		respondCompressed(t, f, body)
	}
	s := f.NewStream()
	s.Headers = append(s.Headers, request("/")...)
	s.Decide(client, emptyHost{}, newBell())
	source, places, last := s.plan.Source(), 0, make(chan bool)
	s.Release()
	for ; queue.Add(source, func() { last <- true }); places++ {
	}
	respondCompressed(t, f, body)
	if n := charged(); n != 0 {
		t.Errorf("%d responses are charged before any is decompressed", n)
	}
	begin()
	for range places {
		<-last
	}
	eventually.Until(t, time.Minute, "the responses with a place are charged", func() bool { return charged() == 2 })
	if places != inflate.SourceMax-2 {
		t.Errorf("%d places were free, want %d", places, inflate.SourceMax-2)
	}
}
