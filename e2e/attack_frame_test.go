// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameAttacks holds attacks by unusual HTTP/2 frames, and by connections that are held open.
var frameAttacks = []attack{
	{name: "streams that are reset at once", path: "/each", limit: 5, loses: true, inFlight: 100, run: func(a *attackRun) { a.resetStreams(4, chooseLength(500, 5_000)) }},
	{name: "headers that never end (CONTINUATION)", path: "/each", limit: 5, inFlight: 4, loses: true, run: (*attackRun).endlessHeaders},
	{name: "frames that are out of order", path: "/each", limit: 5, loses: true, run: (*attackRun).oddFrames},
	{name: "pings, settings and window updates by the thousand", path: "/each", limit: 5, inFlight: 4, run: (*attackRun).floodFrames},
	{name: "pseudo fields twice, or behind others", path: "/each", limit: 5, run: (*attackRun).sendOddFields},
	{name: "2,000 prefaces that are followed by nothing", path: "/each", limit: 5, inFlight: 2_000, run: func(a *attackRun) { a.hold(chooseLength(500, 2_000), http2.ClientPreface+emptySettings) }},
	{name: "headers that come a byte at a time", path: "/each", limit: 5, inFlight: 500, run: func(a *attackRun) {
		a.hold(chooseLength(200, 2_000), "GET /each HTTP/1.1\r\nHost: attacked.example\r\nX-Slow: ")
	}},
	{name: "bodies that come a byte at a time", path: "/each", limit: 5, inFlight: 500, run: func(a *attackRun) {
		a.hold(chooseLength(200, 2_000), "POST /each HTTP/1.1\r\nHost: attacked.example\r\nContent-Length: 100000\r\n\r\n")
	}},
}

// resetStreams opens streams and resets each at once, over several connections.
func (a *attackRun) resetStreams(connections, each int) {
	var group sync.WaitGroup
	for range connections {
		s, err := a.newStreams()
		if err != nil {
			a.note("connect: %v", err)
			continue
		}
		a.sent += each
		group.Go(func() {
			defer s.Close()
			go func() { _, _ = io.Copy(io.Discard, s.Conn) }()
			block := s.block(http.MethodGet, a.attack.path, a.host)
			for range each {
				// Each block is encoded separately, because after the first one, the fields are in
				// HPACK's dynamic table.
				stream, err := s.open(block)
				if err == nil {
					err = s.framer.WriteRSTStream(stream, http2.ErrCodeCancel)
				}
				if err != nil {
					return
				}
				block = s.block(http.MethodGet, a.attack.path, a.host)
			}
			<-time.After(100 * time.Millisecond)
		})
	}
	group.Wait()
}

// endlessHeaders begins a header block and sends thousands of CONTINUATION frames that do not end
// it.
func (a *attackRun) endlessHeaders() {
	const frames = 2_000
	for range 4 {
		s, err := a.newStreams()
		if err != nil {
			continue
		}
		a.sent++
		_ = s.SetDeadline(time.Now().Add(oddWithin))
		go func() { _, _ = io.Copy(io.Discard, s.Conn) }()
		err = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.block(http.MethodGet, a.attack.path, a.host)})
		for i := 0; err == nil && i < frames; i++ {
			s.fields.Reset()
			_ = s.coder.WriteField(fieldOf(fmt.Sprint("x-", i), string(make([]byte, 4<<10))))
			err = s.framer.WriteContinuation(1, false, s.fields.Bytes())
		}
		s.Close()
	}
}

// oddFrames sends frames at times at which they are invalid, each over a new connection.
func (a *attackRun) oddFrames() {
	for i, odd := range []func(s *streams) error{
		func(s *streams) error { return s.framer.WriteContinuation(1, true, nil) },
		func(s *streams) error { return s.framer.WriteData(1, true, []byte("x")) },
		func(s *streams) error { return s.framer.WriteRSTStream(99, http2.ErrCodeCancel) },
		func(s *streams) error { return s.framer.WriteWindowUpdate(0, 1<<31-1) },
		func(s *streams) error {
			return s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2, BlockFragment: s.block(http.MethodGet, "/each", "h"), EndHeaders: true, EndStream: true})
		},
		func(s *streams) error {
			return s.framer.WriteRawFrame(http2.FrameHeaders, 0x5, 1, []byte("\xff\xff\xff"))
		},
		func(s *streams) error { return s.framer.WriteRawFrame(0x7f, 0xff, 1, make([]byte, 100)) },
		func(s *streams) error { return s.framer.WriteRawFrame(http2.FrameSettings, 0, 0, []byte("abc")) },
		func(s *streams) error {
			return s.framer.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		},
		func(s *streams) error { return s.framer.WriteGoAway(0, http2.ErrCodeNo, []byte("bye")) },
	} {
		s, err := a.newStreams()
		if err != nil {
			a.Fatal(i, err)
		}
		a.sent += 2
		_, _ = s.open(s.block(http.MethodGet, a.attack.path, a.host))
		if odd(s) == nil {
			_, _ = s.open(s.block(http.MethodGet, a.attack.path, a.host))
			_ = s.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			s.finish(2)
		}
		s.Close()
	}
}

// floodFrames sends many frames that cost the sender little.
func (a *attackRun) floodFrames() {
	n := chooseLength(2_000, 50_000)
	for range 4 {
		s, err := a.newStreams()
		if err != nil {
			continue
		}
		go func() { _, _ = io.Copy(io.Discard, s.Conn) }()
		for i := 0; err == nil && i < n; i++ {
			switch i % 3 {
			case 0:
				err = s.framer.WritePing(false, [8]byte{})
			case 1:
				err = s.framer.WriteSettings()
			default:
				err = s.framer.WriteWindowUpdate(0, 1)
			}
		}
		s.Close()
	}
}

// sendOddFields sends header blocks that are malformed or ambiguous.
func (a *attackRun) sendOddFields() {
	for _, fields := range [][]string{
		{":path", "/beside"}, {"x-a", "b", ":path", "/beside"}, {":path", ""}, {":authority", "other.example"}, {"host", "other.example"}, {":unknown", "x"},
		{"X-Upper", "x"}, {"connection", "close"}, {"transfer-encoding", "chunked"}, {"te", "gzip"}, {"x-a", "b\r\nx-b: c"}, {"x-a\r\nhost", "b"}, {"x-a", "\x00"}, {"", "x"},
		{":method", "POST"}, {":protocol", "websocket"}, {"content-length", "10"}, {"cookie", "a=b", "cookie", "a=b"}, {"x-forwarded-for", "203.0.113.1"}} {
		a.stream(http.MethodGet, a.attack.path, fields...)
	}
}

// attackRun.hold opens n connections and sends the given text over each of them. It then sends
// single further bytes over all of them, and finally closes them.
func (a *attackRun) hold(n int, text string) {
	var held []net.Conn
	for range n {
		c, err := a.dial()
		if err != nil {
			a.note("after %d connections: %v", len(held), err)
			break
		}
		held = append(held, c)
		_, _ = io.WriteString(c, text)
	}
	a.sent += len(held)
	pace := time.NewTicker(300 * time.Millisecond)
	defer pace.Stop()
	for range chooseLength(3, 20) {
		<-pace.C
		for _, c := range held {
			_, _ = io.WriteString(c, "x")
		}
	}
	for _, c := range held {
		c.Close()
	}
}

// emptySettings is an empty SETTINGS frame, with which an HTTP/2 connection begins after the
// preface.
const emptySettings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func fieldOf(name, value string) hpack.HeaderField {
	return hpack.HeaderField{Name: name, Value: value}
}
