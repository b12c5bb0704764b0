// SPDX-License-Identifier: Apache-2.0

package front

import (
	"bytes"
	"compress/gzip"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/test/eventually"
)

// compressed returns an event stream of 4 MiB, with a cost in its last event, in gzip.
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

// The function remaining sends a request, and returns the units that it leaves.
func remaining(t testing.TB, f *Front) int {
	t.Helper()
	_, fields, _ := ask(t, f, request("/"))
	n, err := strconv.Atoi(fields[response.FieldRemaining])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestHooksDoNotDecompress tests that the hooks of a response return although its body and another
// one still wait to be decompressed, and that both costs are charged in the end. A hook
// decompresses a body itself only if inflatingMax bodies wait.
func TestHooksDoNotDecompress(t *testing.T) {
	f := openFront(t, "name: shop\nrules: [{name: all, limit: 1000000000/31d fixed_window, cost_after: {json: usage, estimate: 1, default: 1}}]\n")
	body, inflating := compressed(t, "1000000"), &f.process.inflating
	charged := func() int { return (1_000_000_000 - remaining(t, f)) / 1_000_000 }
	inflating.mu.Lock()
	for range 2 {
		respondCompressed(t, f, body)
	}
	if n, waiting := charged(), inflating.waiting.Load(); n != 0 || waiting != 2 {
		t.Errorf("%d responses are charged, and %d wait, before any is decompressed", n, waiting)
	}
	places := 0
	for inflating.enter() {
		places++
	}
	respondCompressed(t, f, body)
	eventually.Until(t, time.Minute, "the response beyond the places is charged", func() bool { return charged() == 1 })
	inflating.mu.Unlock()
	eventually.Until(t, time.Minute, "all responses are charged", func() bool { return charged() == 3 })
	if places != inflatingMax-2 {
		t.Errorf("%d places were free, want %d", places, inflatingMax-2)
	}
}
