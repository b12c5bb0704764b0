// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/penstock/penstock/internal/test/eventually"
)

// bytesRoute makes Envoy send the path, the User-Agent and an API key to the rate limit service,
// each in a separate descriptor.
const bytesRoute = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [
    {actions: [{request_headers: {header_name: ":path", descriptor_key: path}}]},
    {actions: [{generic_key: {descriptor_key: agents, descriptor_value: all}}, {request_headers: {header_name: user-agent, descriptor_key: agent}}]},
    {actions: [{generic_key: {descriptor_key: keys, descriptor_value: all}}, {request_headers: {header_name: x-api-key, descriptor_key: api_key}}]}]}},`

// bytesPolicy has a rule for each of the three descriptors. All paths share one counter, and so do
// all agents, but each key has its own counter.
const bytesPolicy = `name: shop
rules:
  - {name: path, match: {attr: {envoy.descriptor: path}, path: /all*}, per: [], limit: 3/31d fixed_window}
  - {name: agent, match: {attr: {envoy.descriptor: agents/agent}}, per: ["attr:agents"], limit: 3/31d fixed_window}
  - {name: key, match: {attr: {envoy.descriptor: keys/api_key}}, per: ["attr:api_key"], limit: 3/31d fixed_window}
`

// TestEnvoySendsBytes tests values of clients that are not valid UTF-8. Envoy sends them to the
// rate limit service unchanged. If the service answered with an error, Envoy's own filter would let
// the request pass.
func TestEnvoySendsBytes(t *testing.T) {
	t.Parallel()
	s := &site{filter: builtInFilter, routes: bytesRoute}
	startEnvoy(t, wasm(t), nil, s)
	b := newBridge(t, bytesPolicy, "--rls-listen", "unix:"+s.grpc, "--token", bridgeToken)
	b.listen = s.bridge
	b.run(t)
	eventually.Until(t, patience, "Envoy has reached the service", func() bool {
		s.get(t, "/warm", "User-Agent", "") // without a User-Agent, which would be counted
		return s.envoy.stat("cluster.upstream.ratelimit.ok") > 0
	})
	asked := 0
	failures := func() int { return s.envoy.stat("cluster.upstream.ratelimit.error") }
	for _, c := range []struct {
		name string
		send func() int
	}{
		{"path over HTTP/2", func() int { return s.sendsTwo(t, ":path", "/all?\xff") }},
		{"path over HTTP/2, several bytes", func() int { return s.sendsTwo(t, ":path", "/all-\xc3\x28\xfe") }},
		{"user-agent over HTTP/1.1", func() int { return s.sendsOne(t, "GET /one HTTP/1.1\r\nHost: h\r\nUser-Agent: \xff\r\n\r\n") }},
		{"x-api-key over HTTP/1.1", func() int { return s.sendsOne(t, "GET /two HTTP/1.1\r\nHost: h\r\nX-API-Key: a\xc3\xfeb\r\n\r\n") }},
		{"x-api-key over HTTP/2", func() int { return s.sendsTwo(t, ":path", "/two", "x-api-key", "\xffa") }},
	} {
		const times = 12
		statuses, before := map[int]int{}, failures()
		for range times {
			statuses[c.send()]++
		}
		failed, passed, refused := failures()-before, 3, times-3
		t.Logf("%s: %d of %d passed at a limit of 3, %d errors", c.name, statuses[http.StatusOK], times, failed)
		if c.name == "path over HTTP/2, several bytes" { // this case shares a counter with the previous one
			passed, refused = 0, times
		}
		asked += times
		if statuses[http.StatusOK] != passed || statuses[http.StatusTooManyRequests] != refused || failed != 0 {
			t.Errorf("%s: %v, want %d passed and %d refused", c.name, statuses, passed, refused)
		}
	}
	metrics := b.metrics(t)
	answered := int(sumSeries(t, metrics, `penstock_rls_requests_total{result="answered"} `))
	if answered < asked || strings.Contains(metrics, `penstock_rls_requests_total{result="malformed"}`) {
		t.Errorf("the bridge counts %d answers of %d, and perhaps requests that it cannot read", answered, asked)
	}
}

// bridge.metrics returns the bridge's metrics.
func (b *bridge) metrics(t *testing.T) string {
	t.Helper()
	a, err := ask(&http.Client{Transport: b.transport()}, "http://penstock/metrics", "Authorization", "Bearer "+bridgeToken)
	if err != nil || a.status != http.StatusOK {
		t.Fatal(a.status, err)
	}
	return a.body
}

// sendsOne sends the text of a request over a new HTTP/1.1 connection, and returns the status of
// the answer.
func (s *site) sendsOne(t *testing.T, request string) int {
	t.Helper()
	connection, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := io.WriteString(connection, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(fmt.Errorf("%q: %w", request, err))
	}
	defer response.Body.Close()
	return response.StatusCode
}

// sendsTwo sends a GET over a new HTTP/2 connection. The arguments are names and values of fields,
// and may be ones that net/http rejects. It returns the status of the answer, or 0 if the stream is
// reset.
func (s *site) sendsTwo(t *testing.T, fields ...string) int {
	t.Helper()
	connection, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields = append([]string{":method", "GET", ":scheme", "http", ":authority", "h"}, fields...)
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(connection, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(connection, connection)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			status, err := strconv.Atoi(frame.PseudoValue("status"))
			if err != nil {
				t.Fatal(err)
			}
			return status
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0
		}
	}
}
