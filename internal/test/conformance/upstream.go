// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// saysField is the header field that prescribes the upstream's answer.
const saysField = "X-Corpus-Says"

// Upstream returns a handler that answers each request of [Request.Send] with the response that one
// of its header fields describes.
func Upstream() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := base64.RawURLEncoding.DecodeString(r.Header.Get(saysField))
		var says Says
		if err == nil {
			err = json.Unmarshal(text, &says)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		w.Header().Set(upstreamField, "reached")
		w.Header().Set("Content-Type", "text/plain")
		for _, field := range says.Header {
			w.Header().Set(field[0], field[1])
		}
		w.WriteHeader(says.Status)
		if r.Method != http.MethodHead && says.Status != http.StatusNoContent && says.Status != http.StatusNotModified {
			_, _ = io.WriteString(w, says.Body)
		}
		if len(says.Trailer) > 0 {
			// Without a known length of the body, trailers can follow.
			_ = http.NewResponseController(w).Flush()
		}
		for _, field := range says.Trailer {
			w.Header().Set(http.TrailerPrefix+field[0], field[1])
		}
	})
}

// answerTime is how long a server may take to answer one request.
const answerTime = 10 * time.Second

// Send sends the request exactly as written in the corpus, over a connection of its own, and reads
// the answer.
func (r *Request) Send(t testing.TB, address string) (a Answer) {
	t.Helper()
	says, err := json.Marshal(r.Says)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(answerTime)); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n%s: %s\r\nConnection: close\r\n", r.Method, r.Target, r.Host, saysField,
		base64.RawURLEncoding.EncodeToString(says))
	for _, field := range r.Header {
		fmt.Fprintf(&b, "%s: %s\r\n", field[0], field[1])
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		b.WriteString("Content-Length: 0\r\n")
	}
	a.Since = time.Now().Unix()
	if _, err := io.WriteString(connection, b.String()+"\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), &http.Request{Method: r.Method})
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	a.Until = time.Now().Unix()
	a.Status, a.Header, a.Body = response.StatusCode, response.Header, string(body)
	a.Passed = a.Header.Get(upstreamField) != ""
	return a
}
