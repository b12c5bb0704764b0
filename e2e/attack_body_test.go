// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// bodyAttacks holds attacks by the bodies of requests and responses, and by refunds that depend on
// a response.
var bodyAttacks = []attack{
	{name: "unfinished bodies under refund_on", path: "/refund", limit: 5, loses: true, fronts: settling, run: unfinishedBodies, plain: wholeBody},
	{name: "unfinished bodies under count_if", path: "/count", limit: 5, loses: true, fronts: settling, run: unfinishedBodies, plain: wholeBody},
	// Two complete streams use up the units of the limit. Each further stream is admitted if it is
	// decided before the previous one is settled.
	{name: "streams that are left before their cost", path: "/cost", limit: 2, slack: 2, loses: true, fronts: settling, run: leaveStreams},
	{name: "streams in a coding that is not read", path: "/cost", limit: 2, slack: 2, loses: true, fronts: settling, run: func(a *attackRun) {
		for range 12 {
			a.each(a.request(http.MethodGet, "/cost", "Accept-Encoding: br\r\nConnection: close\r\n"))
		}
	}},
	// The slack is for three answers, which report that the request costs nothing. An upstream may
	// report this.
	{name: "answers of a hostile upstream", path: "/odd/x", limit: 5, slack: 3, loses: true, fronts: settling, run: func(a *attackRun) {
		for _, name := range slices.Sorted(yieldNames) {
			a.each(a.request(http.MethodGet, "/odd/"+strings.ReplaceAll(name, " ", "-"), "Connection: close\r\n"))
		}
	}},
	{name: "Expect: 100-continue without a body", path: "/each", limit: 5, loses: true, run: func(a *attackRun) {
		for range 12 {
			a.send(a.request(http.MethodPost, "/each", "Expect: 100-continue\r\nContent-Length: 1000\r\n"), 20*time.Millisecond)
		}
	}},
	{name: "upgrades", path: "/each", limit: 5, run: func(a *attackRun) {
		for _, protocol := range []string{"websocket", "h2c", "TLS/1.0", "\xff"} {
			for range 4 {
				a.each(a.request(http.MethodGet, "/each", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: "+protocol+
					"\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"))
			}
		}
	}},
	{name: "request smuggling by lengths and codings", path: "/each", limit: 5, loses: true, run: smuggle},
	{name: "trailers of a request", path: "/each", limit: 5, run: func(a *attackRun) {
		for range 12 {
			a.each(a.request(http.MethodPost, "/each", "Transfer-Encoding: chunked\r\nTrailer: X-Forwarded-For\r\nConnection: close\r\n") +
				"1\r\nx\r\n0\r\nX-Forwarded-For: 203.0.113.9\r\nX-Api-Key: none\r\n\r\n")
		}
	}},
	{name: "fields that name other fields to drop", path: "/keyed", limit: 3, admits: hasID, loses: true, run: func(a *attackRun) {
		for _, drop := range []string{"X-Id", "X-Forwarded-For", "close, X-Id, Host", "X-Beside"} {
			for range 3 {
				a.each(a.request(http.MethodGet, "/keyed", "X-Id: "+a.id+"\r\nConnection: "+drop+"\r\nConnection: close\r\n"))
			}
		}
	}, plain: (*attackRun).sendKeyed},
	{name: "another method, path or host in a field", path: "/each", limit: 5, run: func(a *attackRun) {
		for _, fields := range []string{"X-HTTP-Method-Override: PUT\r\n", "X-HTTP-Method: PUT\r\n", "X-Method-Override: PUT\r\n", "X-Original-URL: /beside\r\n", "X-Rewrite-URL: /beside\r\n",
			"X-Forwarded-Host: other.example\r\n", "X-Forwarded-Path: /beside\r\n", "X-Envoy-Original-Path: /beside\r\n", "X-Envoy-Internal: true\r\n",
			"X-Envoy-Max-Retries: 9\r\nX-Envoy-Retry-On: 2xx,retriable-status-codes\r\nX-Envoy-Retriable-Status-Codes: 200\r\n", "X-Envoy-Upstream-Rq-Timeout-Ms: 1\r\n",
			"X-Envoy-Decorator-Operation: x\r\n", "X-Penstock-Leases: 1\r\n", "X-RateLimit-Remaining: 99\r\n", "RateLimit: none\r\n"} {
			a.each(a.request(http.MethodGet, "/each", fields+"Connection: close\r\n"))
		}
	}},
}

// yieldNames yields the names in oddAnswers.
func yieldNames(yield func(string) bool) {
	for name := range oddAnswers {
		if !yield(name) {
			return
		}
	}
}

// attackRun.send writes text to a new connection, and closes the connection after the time named
// stay, even if there was no answer.
func (a *attackRun) send(text string, stay time.Duration) {
	a.sent++
	c, err := a.dial()
	if err != nil {
		return
	}
	defer c.Close()
	if _, err := io.WriteString(c, text); err == nil {
		_ = c.SetReadDeadline(time.Now().Add(stay))
		_, _ = io.Copy(io.Discard, c)
	}
}

func unfinishedBodies(a *attackRun) {
	for range 12 {
		unfinishedBody(a)
	}
	for range 12 { // a body of unknown length that ends in the middle of a chunk
		a.send(a.request(http.MethodPost, a.attack.path, "Transfer-Encoding: chunked\r\n")+"a\r\nabc", 20*time.Millisecond)
	}
}

// unfinishedBody sends three bytes of a body, of which it has announced ten. It returns the status
// of the answer, or 0 if there is none.
func unfinishedBody(a *attackRun) int {
	a.sent++
	c, err := a.dial()
	if err != nil {
		return 0
	}
	defer c.Close()
	_, _ = io.WriteString(c, a.request(http.MethodPost, a.attack.path, "Content-Length: 10\r\n")+"abc")
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0
	}
	return response.StatusCode
}

func wholeBody(a *attackRun) int {
	status, _ := a.exchange(a.request(http.MethodPost, a.attack.path, "Content-Length: 3\r\nConnection: close\r\n") + "abc")
	return status
}

// leaveStreams disconnects after the first event of each stream. The cost is in the last event.
func leaveStreams(a *attackRun) {
	for range 24 {
		a.sent++
		c, err := a.dial()
		if err != nil {
			continue
		}
		_, _ = io.WriteString(c, a.request(http.MethodGet, "/cost", ""))
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		reader := bufio.NewReader(c)
		if response, err := http.ReadResponse(reader, nil); err == nil && response.StatusCode == http.StatusOK {
			_, _ = io.ReadFull(response.Body, make([]byte, 64))
		}
		c.Close()
		// The proxy settles the charge when it notices that the client has disconnected.
		<-time.After(30 * time.Millisecond)
	}
}

// smuggle sends texts that one server might read as one request and another server as two.
func smuggle(a *attackRun) {
	hidden := "GET /each HTTP/1.1\r\nHost: attacked.example\r\n\r\n"
	length := fmt.Sprint("Content-Length: ", len(hidden), "\r\n")
	for _, fields := range []string{
		length + "Transfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\n" + length, "Transfer-Encoding: xchunked\r\n" + length,
		"Transfer-Encoding : chunked\r\n" + length, "Transfer-Encoding: chunked, identity\r\n" + length, "Transfer-Encoding:\tchunked\r\n" + length,
		"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n" + length, "Transfer-Encoding\r\n : chunked\r\n" + length, length + "Content-Length: 0\r\n",
		"Content-Length: +5\r\n", "Content-Length: 0x10\r\n", "Content-Length: 5, 5\r\n", "Content-Length: -1\r\n", "Content-Length: 99999999999999999999\r\n",
		"Transfer-Encoding: \x0bchunked\r\n" + length, "X: y\nTransfer-Encoding: chunked\r\n" + length} {
		for _, body := range []string{hidden, "0\r\n\r\n" + hidden, "5;a=\n\r\nhello\r\n0\r\n\r\n" + hidden, "0\r\n\r\n" + hidden + hidden} {
			a.send(a.request(http.MethodPost, "/each", fields)+body, 10*time.Millisecond)
		}
	}
}
