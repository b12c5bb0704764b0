// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The path that the other client requests, and the header field by which the upstream recognizes
// these requests.
const (
	otherClientPath   = "/beside"
	otherClientHeader = "X-Beside"
)

// countingUpstream counts the attacker's requests that reach it. All fronts share one, because
// attacks run one at a time.
type countingUpstream struct {
	address string
	active  atomic.Int64 // requests of the attacker that are being answered
	mu      sync.Mutex
	admits  func(r *http.Request) bool
	count   int
	targets []string // descriptions of the first requests that were counted
}

func startCountingUpstream(t testing.TB) *countingUpstream {
	expandingBody() // compress it now, because this would delay the other client during an attack
	u := new(countingUpstream)
	u.address = serveAt(t, "tcp", "127.0.0.1:0", u)
	return u
}

// countingUpstream.begin resets the counts before an attack.
func (u *countingUpstream) begin(admits func(r *http.Request) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.admits, u.count, u.targets = admits, 0, nil
}

// countingUpstream.admitted returns how many requests of the attacker have arrived since begin.
func (u *countingUpstream) admitted() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.count
}

// countingUpstream.remember records a description of the request for the message of an attack that
// fails.
func (u *countingUpstream) remember(r *http.Request) {
	const most, length = 24, 120
	if len(u.targets) < most {
		what := fmt.Sprintf("%s %q host %q", r.Method, r.RequestURI, r.Host)
		for _, name := range []string{"X-Id", "Authorization", "X-API-Key"} {
			if value := r.Header.Values(name); len(value) > 0 {
				what += fmt.Sprintf(" %s %.24q", name, value)
			}
		}
		u.targets = append(u.targets, what[:min(len(what), length)])
	}
}

// countingUpstream.seen returns the descriptions of the first requests that were counted.
func (u *countingUpstream) seen() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return strings.Join(u.targets, "; ")
}

func (u *countingUpstream) idle() bool { return u.active.Load() == 0 }

func (u *countingUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(otherClientHeader) == "" {
		u.active.Add(1)
		defer u.active.Add(-1)
		u.mu.Lock()
		if u.admits == nil || u.admits(r) {
			u.count++
			u.remember(r)
		}
		u.mu.Unlock()
	}
	switch first, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); first {
	case "cost":
		streamCost(w, r)
	case "expand":
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(expandingBody())
	case "odd":
		answerOddly(w, r, rest)
	case "refund", "count":
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			return // the body was incomplete
		}
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			denyGRPC(w, r)
			return
		}
		repeat(w, r, first == "count")
		_, _ = io.WriteString(w, "ok")
	default:
		_, _ = io.WriteString(w, "ok")
	}
}

// denyGRPC answers as a gRPC server that denies a login. The request names the part of the response
// that contains the status.
func denyGRPC(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
	switch r.Header.Get("X-Status-In") {
	case "header":
		w.Header().Set("Grpc-Status", "16")
	case "trailer":
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, "\x00\x00\x00\x00\x00")
		w.Header().Set("Grpc-Status", "16")
	default: // gRPC-Web sends its trailers in the body
		_, _ = io.WriteString(w, "\x80\x00\x00\x00\x10grpc-status: 16\r\n")
	}
}

// costEach is the cost of a request to /cost. The last event of the response states this cost.
const costEach = 5000

// streamCost answers with a stream whose last event contains the cost. The stream is so slow that a
// client can disconnect before that event. If the client accepts brotli, streamCost declares this
// coding, but sends the text unencoded, because no test decodes it.
func streamCost(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if coding := r.Header.Get("Accept-Encoding"); strings.Contains(coding, "br") {
		w.Header().Set("Content-Encoding", "br")
	}
	_, _ = fmt.Fprintf(w, "data: {\"text\":\"%s\"}\n\n", strings.Repeat("x", 4<<10))
	_ = http.NewResponseController(w).Flush()
	select {
	case <-r.Context().Done():
		return
	case <-time.After(150 * time.Millisecond):
	}
	_, _ = fmt.Fprintf(w, "data: {\"usage\":{\"total_tokens\":%d}}\n\n", costEach)
}

// expandingBody returns an event stream of almost 16 MiB, which gzip compresses to 20 KB. The text
// takes long to parse. The last event contains the cost.
var expandingBody = sync.OnceValue(func() []byte {
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	event := "data: {\"a\":[" + strings.Repeat("1,", 30_000) + "1]}\n\n"
	_, _ = io.WriteString(w, strings.Repeat(event, 16<<20/len(event))+"data: {\"usage\":{\"total_tokens\":1}}\n\n")
	_ = w.Close()
	return body.Bytes()
})

// oddAnswers maps the names of answers of a hostile upstream to functions that send them.
var oddAnswers = map[string]func(w http.ResponseWriter, r *http.Request){
	"garbage":  sendOddCost("garbage"),
	"negative": sendOddCost("-5"),
	"infinite": sendOddCost("1e999"),
	"nan":      sendOddCost("NaN"),
	"overflow": sendOddCost("9223372036854775808"),
	"zero":     sendOddCost("0", "0"),
	"twice":    sendOddCost("1", "-100"),
	"long":     sendOddCost(strings.Repeat("9", 8<<10)),
	"early":    func(w http.ResponseWriter, _ *http.Request) { writeEarly(w) },
	"half": func(w http.ResponseWriter, _ *http.Request) {
		hangUp(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX-Co")
	},
	"body": func(w http.ResponseWriter, _ *http.Request) {
		hangUp(w, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nX-Cost: 0\r\n\r\nabc")
	},
	"not http": func(w http.ResponseWriter, _ *http.Request) { hangUp(w, "\x00\xff\xfeSSH-2.0 hello\r\n\r\n") },
	"status": func(w http.ResponseWriter, _ *http.Request) {
		hangUp(w, "HTTP/1.1 999 Odd\r\nX-Cost: 0\r\nContent-Length: 0\r\n\r\n")
	},
	"many":      func(w http.ResponseWriter, _ *http.Request) { manyFields(w) },
	"announced": func(w http.ResponseWriter, _ *http.Request) { announced(w) },
}

func answerOddly(w http.ResponseWriter, r *http.Request, name string) {
	if answer := oddAnswers[strings.ReplaceAll(name, "-", " ")]; answer != nil {
		answer(w, r)
		return
	}
	_, _ = io.WriteString(w, "ok")
}

func sendOddCost(costs ...string) func(w http.ResponseWriter, r *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, c := range costs {
			w.Header().Add("X-Cost", c)
		}
		_, _ = io.WriteString(w, "ok")
	}
}

// writeEarly sends 100 informational responses before the final one.
func writeEarly(w http.ResponseWriter) {
	for range 100 {
		w.WriteHeader(http.StatusEarlyHints)
	}
	_, _ = io.WriteString(w, "ok")
}

func manyFields(w http.ResponseWriter) {
	for i := range 90 {
		w.Header().Set(fmt.Sprintf("X-Many-%d", i), strings.Repeat("v", 500))
	}
	_, _ = io.WriteString(w, "ok")
}

// announced announces a trailer and never sends it.
func announced(w http.ResponseWriter) {
	w.Header().Set("Trailer", "X-Cost")
	_, _ = io.WriteString(w, "ok")
}

// repeat answers with more header fields than Envoy accepts if the client has sent the field
// X-Repeat. Envoy then answers 502 in place of the upstream. If the argument named fails is set,
// the status of the upstream is 401.
func repeat(w http.ResponseWriter, r *http.Request, fails bool) {
	text := r.Header.Get("X-Repeat")
	if text == "" {
		return
	}
	for i := range 120 {
		w.Header().Set(fmt.Sprintf("X-Repeat-%d", i), text)
	}
	if fails {
		w.WriteHeader(http.StatusUnauthorized)
	}
}

// hangUp writes raw bytes to the connection and closes it.
func hangUp(w http.ResponseWriter, text string) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(connection, text)
	_ = connection.Close()
}

// isTakenForAdmin reports whether some server would serve the request as a path below /admin. A
// server may decode the path (including an encoded slash), resolve dots, join slashes, read a
// backslash as a slash, drop parameters after a semicolon, ignore case, or do several of these. It
// may compare only the beginning of the path, or read the text after two slashes as a host. It may
// also drop the path after a semicolon, a line feed at the end, or bytes that are not UTF-8.
func isTakenForAdmin(r *http.Request) bool { return readAsAdmin(r.URL.EscapedPath()) }

func readAsAdmin(escaped string) bool {
	if host, ok := strings.CutPrefix(escaped, "//"); ok {
		_, rest, _ := strings.Cut(host, "/")
		if readAsAdmin("/" + rest) {
			return true
		}
	}
	if strings.HasPrefix(escaped, "/admin/") {
		return true
	}
	beforeSemicolon, _, _ := strings.Cut(escaped, ";")
	for _, spelt := range []string{escaped, withoutParameters(escaped), beforeSemicolon} {
		target, err := url.PathUnescape(spelt)
		if err != nil {
			continue
		}
		for _, reading := range []string{target, strings.TrimSuffix(target, "\n"), strings.ToValidUTF8(target, ""), strings.ReplaceAll(target, `\`, "/"), withoutParameters(strings.ReplaceAll(spelt, `\`, "/"))} {
			clean := withoutCase(path.Clean("/" + reading))
			if clean == "/admin" || strings.HasPrefix(clean, "/admin/") || strings.HasPrefix(withoutCase(reading), "/admin/") {
				return true
			}
		}
	}
	return false
}

// withoutCase converts a path in the way of servers that ignore case. The letters U+0130 and U+0131
// become an i when their case is changed.
func withoutCase(path string) string { return strings.ToLower(strings.ToUpper(path)) }

// withoutParameters drops everything after a semicolon from each segment.
func withoutParameters(target string) string {
	segments := strings.Split(target, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}
