// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// respondsWith returns an upstream that sends a complete document with header fields. In the
// parameter fields, each name is followed by its value.
func respondsWith(body string, fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := 0; i < len(fields); i += 2 {
			w.Header().Set(fields[i], fields[i+1])
		}
		if w.Header().Get("Content-Type") == "" {
			w.Header().Set("Content-Type", "application/json")
		}
		if r.Method != http.MethodHead {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = io.WriteString(w, body)
		}
	}
}

// sendsPieces returns an upstream that sends a body in pieces, without its length. If breaksOff is
// set, the upstream aborts the connection after the last piece.
func sendsPieces(kind string, breaksOff bool, pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		for _, piece := range pieces {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
		}
		if breaksOff {
			panic(http.ErrAbortHandler)
		}
	}
}

// serveTrailer is the handler of an upstream that reports the cost in a trailer.
func serveTrailer(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Trailer", "X-Cost")
	_, _ = io.WriteString(w, "some text")
	w.Header().Set("X-Cost", "44")
}

// encodes is the handler of an upstream that claims to compress with brotli if the request accepts
// that. The reported cost depends on the encodings that the request accepts.
func encodes(w http.ResponseWriter, r *http.Request) {
	asked := r.Header.Get("Accept-Encoding")
	cost := map[string]string{"zstd;q=0.5": "46", "identity": "47"}[asked]
	if strings.Contains(asked, "br") {
		w.Header().Set("Content-Encoding", "br")
	}
	respondsWith(usageJSON(6, cost))(w, r)
}

const (
	documentKind = "application/json"
	streamKind   = "text/event-stream"
)

// meteredCase is a response and its cost.
type meteredCase struct {
	path     string // /tokens/… or /priced/…
	method   string // "" means GET
	accepts  string // Accept-Encoding
	upstream http.HandlerFunc
	status   int    // 0 means 200
	wantCost string // expected X-RateLimit-Cost
	bytes    int    // length of the body; -1 if it is incomplete or not compared
	charged  int64
}

// mib is the size of the largest body that is read to find its cost.
const mib = 1 << 20

func meteredCases() []meteredCase {
	large, huge := usageJSON(mib-100, "41"), usageJSON(mib+100, "42")
	return []meteredCase{
		{path: "/tokens/json", upstream: respondsWith(usageJSON(60, "31")), wantCost: "100", bytes: len(usageJSON(60, "31")), charged: 31},
		{path: "/tokens/chunked", upstream: sendsPieces(documentKind, false, `{"usage":{"total_`, `tokens":3`, `2}`, `}`), wantCost: "100", bytes: 29, charged: 32},
		{path: "/tokens/fraction", upstream: respondsWith(usageJSON(6, "32.2")), wantCost: "100", bytes: -1, charged: 33},
		{path: "/tokens/zipped", accepts: "gzip", upstream: respondsWith(compress(usageJSON(6000, "34")), "Content-Encoding", "gzip"), wantCost: "100",
			bytes: len(compress(usageJSON(6000, "34"))), charged: 34},
		{path: "/tokens/encoded/gzip", accepts: "gzip", upstream: respondsWith(usageJSON(6000, "35")), wantCost: "100", bytes: -1, charged: 35},
		{path: "/tokens/encoded/zstd", accepts: "zstd", upstream: respondsWith(usageJSON(6000, "36")), wantCost: "100", bytes: -1, charged: 36},
		{path: "/tokens/large", upstream: respondsWith(large), wantCost: "100", bytes: len(large), charged: 41},
		{path: "/tokens/too-large", upstream: respondsWith(huge), wantCost: "100", bytes: len(huge), charged: 50000},
		{path: "/tokens/too-large-chunked", upstream: sendsPieces(documentKind, false, huge), wantCost: "100", bytes: len(huge), charged: 50000},
		{path: "/tokens/narrowed", accepts: "br;q=1.0, zstd;q=0.5, deflate", upstream: encodes, wantCost: "100", bytes: -1, charged: 46},
		{path: "/tokens/brotli-only", accepts: "br", upstream: encodes, wantCost: "100", bytes: -1, charged: 47},
		{path: "/tokens/brotli-anyway", upstream: respondsWith(usageJSON(6, "48"), "Content-Encoding", "br"), wantCost: "100", bytes: -1, charged: 50000},
		{path: "/tokens/twice", upstream: respondsWith(usageJSON(6, "49"), "Content-Encoding", "gzip, gzip"), wantCost: "100", bytes: -1, charged: 50000},
		{path: "/tokens/absurd", upstream: respondsWith(usageJSON(6, "50001")), wantCost: "100", bytes: -1, charged: 700},
		{path: "/tokens/negative", upstream: respondsWith(usageJSON(6, "-1")), wantCost: "100", bytes: -1, charged: 700},
		{path: "/tokens/silent", upstream: respondsWith(`{"usage":{}}`), wantCost: "100", bytes: 12, charged: 700},
		{path: "/tokens/html", upstream: respondsWith(usageJSON(6, "37"), "Content-Type", "text/html"), wantCost: "100", bytes: -1, charged: 700},
		{path: "/tokens/head", method: http.MethodHead, upstream: respondsWith(usageJSON(6, "38")), wantCost: "100", bytes: 0, charged: 50000},
		{path: "/tokens/broken-off", upstream: sendsPieces(documentKind, true, `{"usage":{"total_tokens":39},`), wantCost: "100", bytes: -1, charged: 700},
		{path: "/tokens/stream-broken-off", upstream: sendsPieces(streamKind, true, longStream(3, "9")[:3]...), wantCost: "100", bytes: -1, charged: 3},
		{path: "/tokens/unending-event", upstream: sendsPieces(streamKind, false, "data: {\"usage\":{\"total_tokens\":40}}\n\n", "data: "+huge+"\n\n"),
			wantCost: "100", bytes: len(huge) + 45, charged: 50000},
		{path: "/priced/header", upstream: respondsWith("{}", "X-Cost", "43"), wantCost: "43", bytes: 2, charged: 43},
		{path: "/priced/trailer", upstream: serveTrailer, wantCost: "100", bytes: 9, charged: 44},
		{path: "/priced/free", upstream: respondsWith("{}", "X-Cost", "0"), wantCost: "0", bytes: 2, charged: 0},
		{path: "/priced/absurd", upstream: respondsWith("{}", "X-Cost", "1e9"), wantCost: "700", bytes: 2, charged: 700},
		{path: "/priced/silent", upstream: respondsWith("{}"), wantCost: "700", bytes: 2, charged: 700},
		{path: "/priced/head", method: http.MethodHead, upstream: respondsWith("{}", "X-Cost", "45"), wantCost: "45", bytes: 0, charged: 45},
		{path: "/priced/dead", upstream: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, status: 502,
			wantCost: "100", bytes: 0, charged: 50000},
	}
}

// TestCostsOfResponses tests the charges of all cases, and the metrics about settlements.
func TestCostsOfResponses(t *testing.T) {
	t.Parallel()
	cases := meteredCases()
	mux := http.NewServeMux()
	for _, c := range cases {
		mux.Handle(c.path, c.upstream)
	}
	m := startMetered(t, mux)
	m.costAll(t, cases)
	if got := m.metric(`penstock_settlements_total{result="settled"}`); int(got) != len(cases) {
		t.Errorf("%v settlements, want %d", got, len(cases))
	}
	unreadable := 0
	for _, c := range cases {
		if c.charged == 700 || c.charged == 50000 {
			unreadable++
		}
	}
	if got := m.metric("penstock_unreadable_costs_total"); int(got) != unreadable {
		t.Errorf("%v costs were unreadable, want %d", got, unreadable)
	}
}

// costAll sends all cases at once, each as a different client, and compares the charges in Redis.
func (m *meteredSite) costAll(t *testing.T, cases []meteredCase) {
	t.Helper()
	var asking sync.WaitGroup
	for i, c := range cases {
		asking.Go(func() { m.costs(t, c, fmt.Sprintf("192.0.2.%d", i+1)) })
	}
	asking.Wait()
	for i, c := range cases { // no charge was settled twice
		if got := m.countCharged(t, ruleOf(c.path), fmt.Sprintf("192.0.2.%d", i+1)); got != c.charged {
			t.Errorf("%s: %d charged in the end, want %d", c.path, got, c.charged)
		}
	}
}

func ruleOf(path string) string { return strings.Split(path, "/")[1] }

// meteredSite.costs sends one request, checks the response, and waits until the request has the
// right charge.
func (m *meteredSite) costs(t *testing.T, c meteredCase, address string) {
	method := c.method
	if method == "" {
		method = http.MethodGet
	}
	r, err := m.open(t.Context(), m.process, method, c.path, address, "Accept-Encoding", c.accepts)
	if err != nil {
		t.Errorf("%s: %v", c.path, err)
		return
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if want := max(c.status, 200); r.StatusCode != want && !(c.status == 0 && r.StatusCode == 200) {
		t.Errorf("%s: status %d", c.path, r.StatusCode)
	}
	if c.bytes >= 0 && (err != nil || len(body) != c.bytes) {
		t.Errorf("%s: %d bytes and %v, want %d", c.path, len(body), err, c.bytes)
	}
	if strings.HasPrefix(c.path, "/tokens/encoded/") && r.Header.Get("Content-Encoding") != c.accepts {
		t.Errorf("%s: the content is encoded as %q", c.path, r.Header.Get("Content-Encoding"))
	}
	if got := r.Header.Get("X-RateLimit-Cost"); got != c.wantCost {
		t.Errorf("%s: the client is told that it cost %q, want %q", c.path, got, c.wantCost)
	}
	eventually.Until(t, patience, fmt.Sprintf("%s costs %d", c.path, c.charged), func() bool {
		return m.countCharged(t, ruleOf(c.path), address) == c.charged
	})
}

// meteredFronts holds functions that start a front with an upstream.
var meteredFronts = map[string]func(t *testing.T, h http.Handler) *meteredSite{
	"Caddy":             func(t *testing.T, h http.Handler) *meteredSite { return startMetered(t, h) },
	"the native module": startMeteredModule,
}

// TestStreamsAreNotHeldBack tests that a front passes on each event of a stream at once. The
// upstream sends an event only after the client has received the previous one.
func TestStreamsAreNotHeldBack(t *testing.T) {
	t.Parallel()
	for name, start := range meteredFronts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readStreams(t, start)
		})
	}
}

// readStreams is [TestStreamsAreNotHeldBack] for one front.
func readStreams(t *testing.T, start func(t *testing.T, h http.Handler) *meteredSite) {
	const events = 20
	document := []string{`{"items":[1`, `,2`, `,3],"usage":{`, `"total_tokens":2002`, `}}`}
	streams := map[string]*stepwiseUpstream{
		"/tokens/events":         {events: longStream(events, "2001"), kind: streamKind},
		"/tokens/document":       {events: document, kind: documentKind},
		"/tokens/zipped":         {events: longStream(events, "2003"), kind: streamKind, gzipped: true},
		"/tokens/encoded/events": {events: longStream(events, "2004"), kind: streamKind},
	}
	mux := http.NewServeMux()
	for path, s := range streams {
		s.arrived = make(chan struct{})
		mux.Handle(path, s)
	}
	m := start(t, mux)
	wants := map[string]int64{"/tokens/events": 2001, "/tokens/document": 2002, "/tokens/zipped": 2003, "/tokens/encoded/events": 2004}
	var reading sync.WaitGroup
	for path, s := range streams {
		address := fmt.Sprintf("192.0.2.%d", wants[path]-2000)
		reading.Go(func() {
			r, err := m.open(t.Context(), m.process, http.MethodGet, path, address, "Accept-Encoding", "gzip")
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			if got := m.countCharged(t, "tokens", address); got != 100 {
				t.Errorf("%s: %d charged while it goes on, want what is reserved", path, got)
			}
			read := *s
			read.gzipped = r.Header.Get("Content-Encoding") == "gzip"
			read.readsInStep(t, r.Body)
			eventually.Until(t, patience, fmt.Sprintf("%s costs %d", path, wants[path]), func() bool {
				return m.countCharged(t, "tokens", address) == wants[path]
			})
		})
	}
	reading.Wait()
}

// TestClientsThatLeave tests the charge of a client that disconnects before the cost has been read.
// The client is charged the policy's cost for unread responses, or the cost that has been read so
// far if that is more. If the document is complete, the client is charged its cost.
func TestClientsThatLeave(t *testing.T) {
	t.Parallel()
	for name, start := range meteredFronts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			leaveEarly(t, start)
		})
	}
}

// leaveEarly is [TestClientsThatLeave] for one front.
func leaveEarly(t *testing.T, start func(t *testing.T, h http.Handler) *meteredSite) {
	came, left := make(chan struct{}, 16), make(chan struct{}, 16)
	stays := func(kind string, pieces ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			came <- struct{}{}
			if len(pieces) > 0 {
				sendsPieces(kind, false, pieces...)(w, r)
			}
			<-r.Context().Done()
			left <- struct{}{}
		}
	}
	stream := longStream(4, "9")[:4]
	cases := []meteredCase{
		{path: "/tokens/stream", upstream: stays(streamKind, stream...), bytes: len(strings.Join(stream, "")), charged: 50000},
		{path: "/tokens/stream-silent", upstream: stays(streamKind, "data: {}\n\n"), bytes: 10, charged: 50000},
		{path: "/tokens/document", upstream: stays(documentKind, `{"usage":{"total_tokens":5}`), bytes: 27, charged: 50000},
		{path: "/tokens/whole", upstream: stays(documentKind, `{"usage":{"total_tokens":5}}`), bytes: 28, charged: 5},
		{path: "/kept/stream", upstream: stays(streamKind, stream...), bytes: len(strings.Join(stream, "")), charged: 30},
		{path: "/kept/more", upstream: stays(streamKind, "data: {\"usage\":{\"total_tokens\":3000}}\n\n"), bytes: 39, charged: 3000},
		{path: "/priced/waiting", upstream: stays(documentKind), charged: 50000},
		{path: "/tokens/waiting", upstream: stays(documentKind), charged: 50000},
	}
	mux := http.NewServeMux()
	for _, c := range cases {
		mux.Handle(c.path, c.upstream)
	}
	m := start(t, mux)
	for i, c := range cases {
		address := fmt.Sprintf("192.0.2.%d", i+1)
		ctx, leave := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			r, err := m.open(ctx, m.process, http.MethodGet, c.path, address)
			if err == nil {
				_, err = io.ReadFull(r.Body, make([]byte, c.bytes))
				r.Body.Close()
			}
			answered <- err
		}()
		if strings.HasSuffix(c.path, "/waiting") {
			eventually.Until(t, patience, "it is reserved", func() bool { return m.countCharged(t, ruleOf(c.path), address) == 100 })
		} else if err := <-answered; err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		<-came // the client must not leave before the upstream has the request
		leave()
		<-left
		eventually.Until(t, patience, fmt.Sprintf("%s costs %d", c.path, c.charged), func() bool {
			return m.countCharged(t, ruleOf(c.path), address) == c.charged
		})
	}
}
