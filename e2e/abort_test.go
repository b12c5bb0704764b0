// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// abortCaddyfile has one rule that refunds requests whose status is an error, and one that counts
// only requests with the status 401.
const abortCaddyfile = `{
	admin ADMIN
	servers {
		protocols h1 h2 h2c
		trusted_proxies static 127.0.0.1/32
		trusted_proxies_strict
		timeouts {
			read_body 1s
		}
	}
}
:SITE {
	penstock {
		rule refunded {
			match path /refunded /small/**
			limit 5/31d
			refund_on status 4xx 5xx
		}
		rule counted {
			match path /counted
			limit 5/31d
			count_if status 401
		}
	}
	request_body /small/* {
		max_size 5
	}
	reverse_proxy {$UPSTREAM}
}
`

// abort is one way in which a client can abort a request.
type abort struct {
	name string
	path string // the path of the request; "" means both paths in turn
	text string // the HTTP/1 request; METHOD, PATH and ADDRESS are replaced
	h2   bool   // send the request over HTTP/2 and reset its stream
	then string // sent as soon as the upstream has the request
	held bool   // keep the connection open until the first byte of the answer
}

var aborts = []abort{
	{name: "unfinished body", text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nContent-Length: 10\r\n\r\nabc"},
	{name: "unfinished chunk", text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"},
	{name: "no last chunk", text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"},
	{name: "malformed chunk", held: true, then: "zz\r\n", text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"},
	{name: "slow body", held: true, text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nContent-Length: 10\r\n\r\nabc"},
	{name: "expect", text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n"},
	{name: "no body", text: "GET PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\n\r\n"},
	{name: "connection: close", text: "GET PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nConnection: close\r\n\r\n"},
	{name: "too large", path: "/small/x", held: true, text: "POST PATH HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: ADDRESS\r\nTransfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n"},
	{name: "reset", h2: true},
}

// TestWhatAClientAbortsIsNotRefunded tests that the upstream never receives more requests of a
// client than the limit allows, however the client aborts them.
func TestWhatAClientAbortsIsNotRefunded(t *testing.T) {
	t.Parallel()
	seen := newAbortUpstream()
	p := startCaddy(t, abortCaddyfile, "UPSTREAM="+startUpstream(t, seen))
	seen.abortAllWays(t, p.address, aborts)
}

// abortUpstream counts requests by client address and reads their bodies. It answers a request only
// after the client has left.
type abortUpstream struct {
	count [1 << 8]atomic.Int64
	more  [1 << 8]chan struct{} // a channel that holds a value when a request of the client has arrived
}

func newAbortUpstream() *abortUpstream {
	s := new(abortUpstream)
	for i := range s.more {
		s.more[i] = make(chan struct{}, 1)
	}
	return s
}

func (s *abortUpstream) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	_, client, _ := strings.Cut(strings.ReplaceAll(r.Header.Get("X-Forwarded-For"), ", 127.0.0.1", ""), "10.9.9.")
	var n int
	if _, err := fmt.Sscan(client, &n); err == nil {
		s.count[n&255].Add(1)
		select {
		case s.more[n&255] <- struct{}{}:
		default:
		}
	}
	_, _ = io.Copy(io.Discard, r.Body)
	select {
	case <-r.Context().Done():
	case <-time.After(patience):
	}
}

// abortsPerClient is the number of requests that each client aborts. The limit is 5.
const abortsPerClient = 12

// abortAllWays runs every way of aborting, each as a different client, and checks how many requests
// the upstream received.
func (s *abortUpstream) abortAllWays(t *testing.T, to string, ways []abort) {
	client := 0
	var group sync.WaitGroup
	defer group.Wait()
	for _, way := range ways {
		for _, path := range []string{"/refunded", "/counted"} {
			if way.path != "" {
				path = way.path
			}
			client++
			n := client
			group.Go(func() { s.abortAs(t, to, way, path, n) })
		}
	}
}

// abortAs sends and aborts requests as client n.
func (s *abortUpstream) abortAs(t *testing.T, to string, way abort, path string, n int) {
	address := fmt.Sprintf("10.9.9.%d", n)
	for range abortsPerClient {
		before := s.count[n].Load()
		connection, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		_ = connection.SetDeadline(time.Now().Add(patience))
		if way.h2 {
			resetAfter(connection, path, address, func() { s.awaitRequest(n, before) })
		} else {
			_, _ = io.WriteString(connection, strings.NewReplacer("PATH", path, "ADDRESS", address).Replace(way.text))
			if way.then != "" {
				s.awaitRequest(n, before)
				_, _ = io.WriteString(connection, way.then)
			}
			if way.held {
				_, _ = connection.Read(make([]byte, 1))
			} else {
				s.awaitRequest(n, before)
			}
		}
		connection.Close()
	}
	const limit = 5
	if got := s.count[n].Load(); got > limit || got == 0 {
		t.Errorf("%s to %s: the upstream saw %d of %d at limit %d", way.name, path, got, abortsPerClient, limit)
	}
}

// awaitRequest waits until the upstream receives another request of client n. If none arrives
// within 300 ms, the request was probably denied, and awaitRequest returns.
func (s *abortUpstream) awaitRequest(n int, before int64) {
	over := time.After(300 * time.Millisecond)
	for s.count[n].Load() == before {
		select {
		case <-s.more[n&255]:
		case <-over:
			return
		}
	}
}

// resetAfter sends an HTTP/2 request, calls wait(), and resets the stream of the request.
func resetAfter(connection net.Conn, path, address string, wait func()) {
	_, _ = io.WriteString(connection, http2.ClientPreface)
	framer := http2.NewFramer(connection, connection)
	_ = framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "h"}, {"x-forwarded-for", address}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = framer.WriteData(1, false, []byte("abc"))
	wait()
	_ = framer.WriteRSTStream(1, http2.ErrCodeCancel)
	wait()
}
