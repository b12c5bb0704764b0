// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/quicvarint"
)

// http3Attacks holds attacks by HTTP/3 requests that no library would send.
var http3Attacks = []attack{
	{name: "request targets over HTTP 3", path: "/admin/x", limit: 3, admits: isTakenForAdmin, fronts: quicFronts, run: func(a *attackRun) {
		a.rawTargets(append([]string{"/admin/ x", "/y/../admin/\x7f"}, pathSpellings...), http.MethodGet)
		a.rawTargets(rawTargets("/admin/x"), http.MethodGet, http.MethodOptions, http.MethodConnect)
	}},
	{name: "request targets of what is blocked over HTTP 3", path: "/shut/x", limit: 0, admits: isServedBelow("/shut"), fronts: quicFronts,
		run: func(a *attackRun) { a.rawTargets(rawTargets("/shut/x"), http.MethodGet, http.MethodConnect) }},
	{name: "spellings of a host over HTTP 3", path: "/host", limit: 3, admits: isLimitedHost, fronts: quicFronts, run: rawHosts, plain: limitedHost},
	{name: "spellings of a method over HTTP 3", path: "/post", limit: 3, admits: isTakenForPost, fronts: quicFronts, plain: plainPost, run: func(a *attackRun) {
		for _, method := range []string{"POST", "post", "Post", "pOST", "POST\t", " POST", "POST\x00", "\xffPOST", "POST,GET", ""} {
			a.raw(headersOf(":method", method, ":scheme", "https", ":authority", a.rawHost(), ":path", a.attack.path))
		}
	}},
	{name: "fields of HTTP 3 twice, missing or out of place", path: "/each", limit: 5, loses: true, fronts: quicFronts, run: rawFields},
	{name: "bytes that are not UTF-8 over HTTP 3", path: "/each", limit: 5, loses: true, fronts: quicFronts, run: func(a *attackRun) {
		for i := range 6 {
			odd := fmt.Sprintf("\xff%c", 0x80+i)
			a.rawGet("/each?" + odd)
			for _, name := range []string{"user-agent", "x-api-key", "authorization", "x-id"} {
				a.rawGet("/each", name, odd)
			}
		}
	}},
	{name: "frames of HTTP 3 that are out of order", path: "/each", limit: 5, loses: true, fronts: quicFronts, run: rawFrames},
	{name: "unfinished bodies over HTTP 3 under refund_on", path: "/refund", limit: 5, loses: true, fronts: quicFronts, run: rawUnfinished, plain: wholeBody},
	{name: "unfinished bodies over HTTP 3 under count_if", path: "/count", limit: 5, loses: true, fronts: quicFronts, run: rawUnfinished, plain: wholeBody},
	{name: "WebSockets with a cost by the CONNECT of HTTP 3", path: "/cost", limit: 2, slack: 2, loses: true, fronts: []string{caddyMemory, caddyRedis},
		run: func(a *attackRun) { a.quicWebSockets(40) }},
	{name: "streams of HTTP 3 that are left before their cost", path: "/cost", limit: 2, slack: 2, loses: true, fronts: quicFronts, run: rawUnfinished},
}

// rawConnection is an HTTP/3 connection whose frames the test itself builds.
type rawConnection struct {
	*quic.Conn
	close func()
}

// dialRaw opens a connection and sends empty settings.
func (a *attackRun) dialRaw() (*rawConnection, error) {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(a.from)})
	if err != nil {
		return nil, err
	}
	transport := &quic.Transport{Conn: socket}
	closeAll := func() { _ = transport.Close(); _ = socket.Close() }
	to, err := net.ResolveUDPAddr("udp", a.front.quic)
	if err != nil {
		closeAll()
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), exchangeWithin)
	defer cancel()
	connection, err := transport.Dial(ctx, to, &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", NextProtos: []string{http3.NextProtoH3}}, new(quic.Config))
	if err != nil {
		closeAll()
		return nil, err
	}
	if control, err := connection.OpenUniStream(); err == nil {
		_, _ = control.Write(append([]byte{0}, frameOf(frameSettings, nil)...)) // type 0 is the control stream
	}
	return &rawConnection{connection, func() { _ = connection.CloseWithError(0, ""); closeAll() }}, nil
}

// attackRun.raw sends frames on one stream of a new connection, ends the stream, and reads the
// answer.
func (a *attackRun) raw(frames ...[]byte) {
	a.rawStream(func(_ *rawConnection, s *quic.Stream) {
		_ = s.Close()
		_ = s.SetReadDeadline(time.Now().Add(oddWithin / 2))
		_, _ = io.Copy(io.Discard, s)
	}, frames...)
}

// rawStream sends frames on one stream of a new connection. It calls the function named then before
// it closes the connection.
func (a *attackRun) rawStream(then func(*rawConnection, *quic.Stream), frames ...[]byte) {
	a.sent++
	c, err := a.dialRaw()
	if err != nil {
		a.Fatal(err)
	}
	defer c.close()
	s, err := c.OpenStream()
	if err != nil {
		a.note("a stream: %v", err)
		return
	}
	for _, frame := range frames {
		if _, err := s.Write(frame); err != nil {
			return
		}
	}
	then(c, s)
}

// rawHost returns a host that all quicFronts serve.
func (a *attackRun) rawHost() string { return "localhost:" + portOf(a.front.quic) }

// rawGet sends a GET with further fields.
func (a *attackRun) rawGet(target string, fields ...string) {
	a.raw(headersOf(append([]string{":method", http.MethodGet, ":scheme", "https", ":authority", a.rawHost(), ":path", target}, fields...)...))
}

// Types of HTTP/3 frames.
const (
	frameData        = 0x0
	frameHeaders     = 0x1
	framePushPromise = 0x5
	frameSettings    = 0x4
	frameGoAway      = 0x7
)

func frameOf(kind uint64, payload []byte) []byte {
	return append(quicvarint.Append(quicvarint.Append(nil, kind), uint64(len(payload))), payload...)
}

// headersOf returns a HEADERS frame. In the list of fields, each name is followed by its value. The
// frame encodes all of them as literals.
func headersOf(fields ...string) []byte {
	block := []byte{0, 0} // no dynamic table is used
	for i, text := range fields {
		bits, first := 3, byte(0x20) // a literal name, without Huffman coding
		if i%2 == 1 {
			bits, first = 7, 0
		}
		if n, most := len(text), 1<<bits-1; n < most {
			block = append(block, first|byte(n))
		} else {
			block = append(block, first|byte(most))
			for n -= most; n >= 0x80; n >>= 7 {
				block = append(block, byte(n)|0x80)
			}
			block = append(block, byte(n))
		}
		block = append(block, text...)
	}
	return frameOf(frameHeaders, block)
}

// rawTargets returns other forms of a target with the given path, and texts that resemble such
// forms.
func rawTargets(path string) []string {
	rest := strings.TrimPrefix(path, "/")
	return []string{"http://localhost" + path, "https://localhost" + path, "HTTPS://LOCALHOST" + path, "x:http://localhost" + path, "http:" + rest, "x:" + path, "x:" + rest,
		"//localhost" + path, "//" + path, "http://user:password@localhost" + path, "http:///" + rest, "https:" + path, "*", "*" + path, rest, "", "?" + path,
		path + "#fragment", "#" + path, "localhost:443", "ftp://localhost" + path, "wss://localhost" + path, " " + path, path + " ", "\t" + path, "\\" + rest}
}

// rawTargets sends every target as :path with every method. It also sends the attacked path with
// other pseudo fields, or with some of them missing.
func (a *attackRun) rawTargets(targets []string, methods ...string) {
	for _, target := range targets {
		for _, method := range methods {
			a.raw(headersOf(":method", method, ":scheme", "https", ":authority", a.rawHost(), ":path", target))
		}
	}
	for _, pseudo := range [][]string{{":scheme", "http"}, {":scheme", "x"}, {":scheme", ""}, {}} {
		for _, host := range [][]string{{":authority", a.rawHost()}, {"host", a.rawHost()}, {":authority", "user@" + a.rawHost()}, {":authority", ""}, {}} {
			fields := append(append([]string{":method", http.MethodGet, ":path", a.attack.path}, pseudo...), host...)
			a.raw(headersOf(fields...))
		}
	}
}

func rawHosts(a *attackRun) {
	port := portOf(a.front.quic)
	for _, host := range []string{"limited.example:" + port, "LIMITED.example:" + port, "limited.example", "limited.example.", "limited.example.:" + port, "limited.example:0" + port,
		"limited.example:", "limited.example/", "user@limited.example:" + port, "limited%2eexample:" + port, " limited.example:" + port, "limited.example\t", "limited.example,other.example"} {
		a.raw(headersOf(":method", http.MethodGet, ":scheme", "https", ":authority", host, ":path", "/host"))
		a.raw(headersOf(":method", http.MethodGet, ":scheme", "https", ":authority", host, ":path", "/host", "host", a.rawHost()))
		a.raw(headersOf(":method", http.MethodGet, ":scheme", "https", ":authority", a.rawHost(), ":path", "/host", "host", host))
		a.raw(headersOf(":method", http.MethodGet, ":scheme", "https", ":path", "/host", "host", host))
	}
}

// rawFields sends header sections that are malformed or ambiguous.
func rawFields(a *attackRun) {
	for _, fields := range [][]string{
		{":path", "/beside"}, {"x-a", "b", ":path", "/beside"}, {":path", ""}, {":authority", "other.example"}, {"host", "other.example"}, {":unknown", "x"}, {":status", "200"},
		{"X-Upper", "x"}, {"connection", "close"}, {"transfer-encoding", "chunked"}, {"te", "gzip"}, {"x-a", "b\r\nx-b: c"}, {"x-a\r\nhost", "b"}, {"x-a", "\x00"}, {"", "x"},
		{":method", "POST"}, {":protocol", "websocket"}, {"content-length", "10"}, {"content-length", "-1"}, {"cookie", "a=b", "cookie", "a=b"}, {"x-forwarded-for", "203.0.113.1"}} {
		a.rawGet(a.attack.path, fields...)
	}
}

// rawFrames sends requests in which frames are missing, malformed or in places where they are not
// permitted.
func rawFrames(a *attackRun) {
	request := headersOf(":method", http.MethodPost, ":scheme", "https", ":authority", a.rawHost(), ":path", a.attack.path)
	body, trailers := frameOf(frameData, []byte("x")), headersOf("x-forwarded-for", "203.0.113.9")
	for _, frames := range [][][]byte{
		{body, request}, {request, request}, {request, body, request}, {request, body, trailers}, {request, body, trailers, body}, {request, trailers, trailers}, {request[:4]},
		{frameOf(frameSettings, nil), request}, {request, frameOf(frameSettings, nil)}, {frameOf(framePushPromise, []byte{0}), request}, {frameOf(frameGoAway, []byte{0}), request},
		{request, frameOf(frameData, make([]byte, 64<<10))[:100]}, {frameOf(0x21, []byte("grease")), request}, {frameOf(frameHeaders, []byte{0xff, 0xff, 0xff, 0xff}), request},
		{frameOf(frameHeaders, nil), request}, {frameOf(0x2, nil), request}, {frameOf(frameHeaders, append([]byte{0, 0}, strings.Repeat("\xc1", 1<<10)...)), request}} {
		a.raw(frames...)
	}
}

// rawUnfinished aborts requests in every way that HTTP/3 permits. It resets the stream, closes the
// connection, sends a body whose length differs from the announced one, or does not read the
// answer.
func rawUnfinished(a *attackRun) {
	for range 4 {
		for _, length := range [][]string{{"content-length", "10"}, nil} {
			request := headersOf(append([]string{":method", http.MethodPost, ":scheme", "https", ":authority", a.rawHost(), ":path", a.attack.path}, length...)...)
			body := frameOf(frameData, []byte("abc"))
			for _, leave := range []func(*rawConnection, *quic.Stream){
				func(_ *rawConnection, s *quic.Stream) { s.CancelWrite(0x10c) },
				func(_ *rawConnection, s *quic.Stream) { s.CancelRead(0x10c) },
				func(c *rawConnection, _ *quic.Stream) { _ = c.CloseWithError(0x100, "") },
				func(_ *rawConnection, s *quic.Stream) { _ = s.Close(); s.CancelRead(0x10c) },
				func(_ *rawConnection, s *quic.Stream) { _, _ = s.Write(frameOf(frameData, make([]byte, 64))[:3]) },
			} {
				a.rawStream(func(c *rawConnection, s *quic.Stream) {
					<-time.After(unfinishedFor)
					leave(c, s)
					<-time.After(unfinishedFor)
				}, request, body)
			}
		}
	}
}

// unfinishedFor is how long an aborted request lasts.
const unfinishedFor = 10 * time.Millisecond
