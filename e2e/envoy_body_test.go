// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestBodiesOfWaitingRequests tests the setting allow_on_headers_stop_iteration, which some control
// planes of Envoy use. With it, Envoy passes the body and the trailers of a waiting request to the
// filter. The request must not continue before it is decided, and a body that is longer than
// Envoy's buffer must arrive complete.
func TestBodiesOfWaitingRequests(t *testing.T) {
	t.Parallel()
	config := strings.Replace(wasmConfig, "root_id:", "allow_on_headers_stop_iteration: true, root_id:", 1)
	s := &site{set: longDeadline, filter: strings.Replace(wasmFilter, "WASM_CONFIG", config, 1)}
	const limit, long = 3, 3 << 20
	bodies, trailers := make(chan int, 100), make(chan string, 100)
	useEnvoy(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			t.Error(err)
		}
		bodies <- int(n)
		trailers <- r.Trailer.Get("X-End")
	}), s)
	s.startBridge(t, "name: shop\nrules: [{name: api, match: {path: /api/*}, limit: 3/31d fixed_window}]\n", "--redis", redistest.Start(t).URL())
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true) // over HTTP/1.1, Envoy drops trailers by default
	defer transport.CloseIdleConnections()
	sizes := []int{long, 0, 10, 10, 10, 0, 10, 0, 10, 10, 0, 10}
	statuses := map[int]int{}
	for _, size := range sizes {
		// An iotest.HalfReader hides the length of the body, because a request with a known length
		// has no trailers.
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+"/api/x", iotest.HalfReader(strings.NewReader(strings.Repeat("x", size))))
		if err != nil {
			t.Fatal(err)
		}
		r.Trailer = http.Header{"X-End": {"yes"}}
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		statuses[answer.StatusCode]++
	}
	if statuses[http.StatusOK] != limit || statuses[http.StatusTooManyRequests] != len(sizes)-limit || len(bodies) != limit {
		t.Fatalf("statuses %v, and %d requests reached the upstream, want %d", statuses, len(bodies), limit)
	}
	for _, size := range sizes[:limit] {
		if n, end := <-bodies, <-trailers; n != size || end != "yes" {
			t.Errorf("a body of %d bytes arrived, with the trailer %q, want %d bytes", n, end, size)
		}
	}
}
