// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/status"
)

// TestUnreadAnswersHoldNoPlace: a client sends more requests for its limits over HTTP/2 than can be
// under way at a time, and accepts no data, so that the server cannot write the answers. Another
// request is answered.
func TestUnreadAnswersHoldNoPlace(t *testing.T) {
	var rules strings.Builder
	for i := range 40 { // the answer is longer than what HTTP/2 buffers
		fmt.Fprintf(&rules, "rule %s-%d 100/1h\n", strings.Repeat("x", 60), i)
	}
	s := start(t, `{
		servers {
			protocols h1 h2c
			trusted_proxies static 127.0.0.1/32
			trusted_proxies_strict
		}
	}
	:PORT {
		penstock {
			`+rules.String()+`
		}
		penstock_status /quota
	}`)
	connection, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(s.port))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := connection.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(connection, connection)
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	const requests = 2 * status.UnderMax
	for i := range requests {
		block.Reset()
		for _, field := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "h"},
			{Name: ":path", Value: "/quota"}, {Name: "x-forwarded-for", Value: fmt.Sprintf("198.51.100.%d", i)}} {
			if err := encoder.WriteField(field); err != nil {
				t.Fatal(err)
			}
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	for answers := 0; answers < requests; { // the header of an answer is sent before its data
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("after %d answers: %v", answers, err)
		}
		if frame.Header().Type == http2.FrameHeaders {
			answers++
		}
	}
	if got := s.get("/quota", "X-Forwarded-For", "192.0.2.1").StatusCode; got != http.StatusOK {
		t.Errorf("status %d for another client", got)
	}
}
