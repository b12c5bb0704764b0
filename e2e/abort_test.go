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

// abortCaddyfile gives back what errors cost, and counts logins that fail only.
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

// abort is a way to break a request off.
type abort struct {
	name string
	path string // "" for both
	text string // of HTTP/1; METHOD, PATH and ADDRESS are put in
	h2   bool   // or a request of HTTP/2 that is reset
	then string // is sent when the upstream has the request
	held bool   // the connection is kept until there is an answer
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

// TestWhatAClientAbortsIsNotRefunded: however a client breaks its request off, the upstream sees no more of its requests than
// the limit.
func TestWhatAClientAbortsIsNotRefunded(t *testing.T) {
	seen := newSightings()
	p := startCaddy(t, abortCaddyfile, "UPSTREAM="+startUpstream(t, seen))
	seen.breakOff(t, p.address, aborts)
}

// sightings is an upstream that counts requests by the address of the client, and reads their bodies. It does not answer
// before the client has left.
type sightings struct {
	count [1 << 8]atomic.Int64
	more  [1 << 8]chan struct{} // one is there when a request has come
}

func newSightings() *sightings {
	s := new(sightings)
	for i := range s.more {
		s.more[i] = make(chan struct{}, 1)
	}
	return s
}

func (s *sightings) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
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

// abortsOfEach is how often a request is broken off, at a limit of 5.
const abortsOfEach = 12

// breakOff breaks requests off in each way, one after the other, and counts what the upstream sees.
func (s *sightings) breakOff(t *testing.T, to string, ways []abort) {
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
			group.Go(func() { s.breaksOff(t, to, way, path, n) })
		}
	}
}

// breaksOff is one client that breaks requests off.
func (s *sightings) breaksOff(t *testing.T, to string, way abort, path string, n int) {
	address := fmt.Sprintf("10.9.9.%d", n)
	for range abortsOfEach {
		before := s.count[n].Load()
		connection, err := net.Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		_ = connection.SetDeadline(time.Now().Add(patience))
		if way.h2 {
			resetAfter(connection, path, address, func() { s.arrives(n, before) })
		} else {
			_, _ = io.WriteString(connection, strings.NewReplacer("PATH", path, "ADDRESS", address).Replace(way.text))
			if way.then != "" {
				s.arrives(n, before)
				_, _ = io.WriteString(connection, way.then)
			}
			if way.held {
				_, _ = connection.Read(make([]byte, 1))
			} else {
				s.arrives(n, before)
			}
		}
		connection.Close()
	}
	const limit = 5
	if got := s.count[n].Load(); got > limit || got == 0 {
		t.Errorf("%s to %s: the upstream saw %d of %d at limit %d", way.name, path, got, abortsOfEach, limit)
	}
}

// arrives waits until the upstream sees the request, or for long enough to take it for refused.
func (s *sightings) arrives(n int, before int64) {
	over := time.After(300 * time.Millisecond)
	for s.count[n].Load() == before {
		select {
		case <-s.more[n&255]:
		case <-over:
			return
		}
	}
}

// resetAfter sends a request of HTTP/2 and resets it.
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
