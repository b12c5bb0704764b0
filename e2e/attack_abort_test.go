// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

// abortAttacks holds attacks that abort requests over HTTP/2, or requests whose cost the response
// reports. Aborts over HTTP/1.1 are in bodyAttacks, and aborts over HTTP/3 in http3Attacks.
var abortAttacks = []attack{
	{name: "unfinished bodies over HTTP 2 under refund_on", path: "/refund", limit: 5, loses: true, fronts: settling, run: unfinishedStreams, plain: wholeBody},
	{name: "unfinished bodies over HTTP 2 under count_if", path: "/count", limit: 5, loses: true, fronts: settling, run: unfinishedStreams, plain: wholeBody},
	{name: "unfinished bodies over HTTP 2 of requests with a cost", path: "/cost", limit: 2, slack: 2, loses: true, fronts: settling, run: unfinishedStreams},
	{name: "unfinished bodies of requests with a cost", path: "/cost", limit: 2, slack: 2, loses: true, fronts: settling, run: unfinishedBodies},
	{name: "malformed chunks under refund_on", path: "/refund", limit: 5, loses: true, fronts: settling, run: chunksReadByEnvoy, plain: wholeBody},
	{name: "malformed chunks under count_if", path: "/count", limit: 5, loses: true, fronts: settling, run: malformedChunks, plain: wholeBody},
	{name: "responses that Envoy does not accept under refund_on", path: "/refund", limit: 5, fronts: settling, run: repeatedFields},
	{name: "responses that Envoy does not accept under count_if", path: "/count", limit: 5, fronts: settling, run: repeatedFields},
	{name: "failed logins as gRPC under count_if", path: "/count", limit: 5, fronts: settling, run: failedGRPCLogins},
	{name: "compressed responses that expand to 16 MiB", path: "/expand", limit: 60, fronts: settling, run: expandingResponses},
}

// expandingResponses requests 50 compressed responses at the same time.
func expandingResponses(a *attackRun) {
	a.sendBurst(50, func(int) string {
		return a.request(http.MethodGet, a.attack.path, "Accept-Encoding: gzip\r\nConnection: close\r\n")
	})
}

// failedGRPCLogins sends failed logins as gRPC. The upstream answers with the HTTP status 200, and
// reports the failure in a header, a trailer or the body.
func failedGRPCLogins(a *attackRun) {
	for _, kind := range []string{"application/grpc", "application/grpc+proto", "application/grpc-web", "application/grpc-web-text"} {
		for _, way := range []string{"header", "trailer", "body"} {
			a.each(a.request(http.MethodPost, a.attack.path, "Content-Type: "+kind+"\r\nX-Status-In: "+way+"\r\nContent-Length: 0\r\nConnection: close\r\n"))
		}
	}
}

// repeatedFields makes the upstream repeat a field so often that Envoy rejects the response. Caddy
// accepts the response, so its rules see the upstream's status.
func repeatedFields(a *attackRun) {
	for range 12 {
		a.each(a.request(http.MethodGet, a.attack.path, "X-Repeat: x\r\nConnection: close\r\n"))
	}
}

// unfinishedStreams aborts requests in every way that HTTP/2 permits.
func unfinishedStreams(a *attackRun) {
	for range 4 {
		for _, length := range [][]string{{"content-length", "10"}, {"content-length", "2"}, nil} {
			for _, leave := range []func(s *streams){
				func(s *streams) { _ = s.framer.WriteRSTStream(1, http2.ErrCodeCancel) },
				func(s *streams) { _ = s.framer.WriteRSTStream(1, http2.ErrCodeNo) },
				func(s *streams) { _ = s.framer.WriteData(1, true, nil) }, // the body is shorter than announced
				func(s *streams) { _ = s.framer.WriteGoAway(0, http2.ErrCodeInternal, nil) },
				func(s *streams) { _ = s.framer.WriteWindowUpdate(1, 1<<31-1) }, // a stream error
				func(s *streams) { _ = s.framer.WriteRawFrame(http2.FrameData, 0x8, 1, []byte{0xff, 'x'}) },
				func(s *streams) {}, // the connection is closed
			} {
				a.leaveStream(length, leave)
			}
		}
	}
}

// leaveStream sends the beginning of a request with a body, and then calls leave, which aborts it.
func (a *attackRun) leaveStream(length []string, leave func(s *streams)) {
	a.sent++
	s, err := a.newStreams()
	if err != nil {
		a.Fatal(err)
	}
	defer s.Close()
	go func() { _, _ = io.Copy(io.Discard, s.Conn) }()
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
		BlockFragment: s.block(http.MethodPost, a.attack.path, a.host, length...)})
	_ = s.framer.WriteData(1, false, []byte("abc"))
	<-time.After(unfinishedFor)
	leave(s)
	<-time.After(unfinishedFor)
}

// malformedChunks sends bodies whose chunks cannot be read to the end. It sends each body in one
// piece, and also in two parts, so that the upstream already has the request when the second part
// arrives. Envoy rejects some of the requests that arrive in one piece before the filter has asked
// the bridge. These requests are not counted, and do not reach the upstream.
func malformedChunks(a *attackRun) {
	for _, rest := range []string{"zz\r\n", "-1\r\n", "0\r\nX: y", "3;" + string(make([]byte, 8<<10)) + "\r\nabc", "fffffffffffffffff\r\nabc"} {
		for range 2 {
			a.send(a.chunkedRequest()+rest, 10*unfinishedFor)
			a.sendInParts(a.chunkedRequest(), rest, 10*unfinishedFor)
		}
	}
}

// chunksReadByEnvoy is like malformedChunks, but also sends a chunk that is longer than its stated
// size. Caddy answers 400. Envoy ignores the bytes beyond the size, and forwards a complete request
// with the body "abc". The upstream answers 200, which count_if would not count, so this chunk is
// only sent under refund_on.
func chunksReadByEnvoy(a *attackRun) {
	malformedChunks(a)
	for range 2 {
		a.send(strings.TrimSuffix(a.chunkedRequest(), "\r\n")+"def\r\n0\r\n\r\n", 10*unfinishedFor)
	}
}

// chunkedRequest returns the text of a request up to the end of the first chunk of its body.
func (a *attackRun) chunkedRequest() string {
	return a.request(http.MethodPost, a.attack.path, "Transfer-Encoding: chunked\r\n") + "3\r\nabc\r\n"
}

// sendInParts sends a request in two parts. It sends the second part when the upstream has had time
// to receive the first, and then reads the answer for the time named stay.
func (a *attackRun) sendInParts(first, second string, stay time.Duration) {
	a.sent++
	c, err := a.dial()
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = io.WriteString(c, first)
	<-time.After(unfinishedFor)
	_, _ = io.WriteString(c, second)
	_ = c.SetReadDeadline(time.Now().Add(stay))
	_, _ = io.Copy(io.Discard, c)
}
