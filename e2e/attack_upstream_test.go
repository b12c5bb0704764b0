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

// The path that the other client requests, and the field by which the upstream recognizes its
// requests.
const (
	otherClientPath   = "/beside"
	otherClientHeader = "X-Beside"
)

// countingUpstream counts the requests that reach it. All fronts share it, since rows run one at a
// time.
type countingUpstream struct {
	address string
	active  atomic.Int64 // requests of the attacker that are being answered
	mu      sync.Mutex
	admits  func(r *http.Request) bool
	count   int
	targets []string // descriptions of the first requests that were counted
}

func startCountingUpstream(t testing.TB) *countingUpstream {
	expandingBody() // compressing it during a row would delay the row's other client
	u := new(countingUpstream)
	u.address = serveAt(t, "tcp", "127.0.0.1:0", u)
	return u
}

// The method begin resets the counts before a row.
func (u *countingUpstream) begin(admits func(r *http.Request) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.admits, u.count, u.targets = admits, 0, nil
}

// The method admitted returns how many requests of the attacker have arrived since begin.
func (u *countingUpstream) admitted() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.count
}

// The method remember records a description of the request, for the message of a row that fails.
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

// The method seen returns the descriptions of the first requests.
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
		repeat(w, r, first == "count")
		_, _ = io.WriteString(w, "ok")
	default:
		_, _ = io.WriteString(w, "ok")
	}
}

// costEach is the cost of a request to /cost, as its last event states.
const costEach = 5000

// streamCost answers with a stream whose last event contains the cost. The stream is slow enough
// for a client to disconnect before that event. streamCost declares brotli if the client accepts
// that, but sends the text unencoded: no test decodes it.
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

// The variable expandingBody returns an event stream in gzip: 20 KB, which expand to almost 16 MiB
// of text that takes long to read. Its last event contains the cost.
var expandingBody = sync.OnceValue(func() []byte {
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	event := "data: {\"a\":[" + strings.Repeat("1,", 30_000) + "1]}\n\n"
	_, _ = io.WriteString(w, strings.Repeat(event, 16<<20/len(event))+"data: {\"usage\":{\"total_tokens\":1}}\n\n")
	_ = w.Close()
	return body.Bytes()
})

// oddAnswers maps the names of a hostile upstream's answers to functions that send them.
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

// The function announced announces a trailer and never sends it.
func announced(w http.ResponseWriter) {
	w.Header().Set("Trailer", "X-Cost")
	_, _ = io.WriteString(w, "ok")
}

// The function repeat repeats a field of the client in more fields than Envoy accepts, so that
// Envoy answers 502 in place of the upstream. The argument fails makes the status 401.
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

// hangUp writes raw bytes and closes the connection.
func hangUp(w http.ResponseWriter, text string) {
	connection, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(connection, text)
	_ = connection.Close()
}

// isTakenForAdmin reports whether some server would serve the request as a path below /admin. Such
// a server decodes the path (including an encoded slash), resolves dots, joins slashes, reads a
// backslash as a slash, drops parameters after a semicolon, ignores case, or does several of these.
// Other servers compare only the beginning of the path, or read the text after two slashes as a
// host. Others drop the path after a semicolon, a line feed at the end, or bytes that are not
// UTF-8.
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

// The function withoutCase converts a path as servers do that ignore case. In upper or lower case,
// U+0130 and U+0131 become an i.
func withoutCase(path string) string { return strings.ToLower(strings.ToUpper(path)) }

// withoutParameters drops everything after a semicolon from each segment.
func withoutParameters(target string) string {
	segments := strings.Split(target, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}
