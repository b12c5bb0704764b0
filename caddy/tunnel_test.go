// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// TestConnectOpensNoTunnel tests that the body of a CONNECT does not reach the upstream, which
// would read further requests from it.
func TestConnectOpensNoTunnel(t *testing.T) {
	var received atomic.Int64
	s := start(t, `{
		servers {
			protocols h1 h2c
		}
	}
	:PORT {
		penstock 5/1d
		reverse_proxy `+upstream(t, func(http.ResponseWriter, *http.Request) { received.Add(1) })+`
	}`)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	address := "127.0.0.1:" + strconv.Itoa(s.port)
	body := strings.Repeat("GET /admin HTTP/1.1\r\nHost: h\r\n\r\n", 20)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodConnect, "http://"+address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.ContentLength = -1
	r, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	equal(t, "the status of a CONNECT", r.Status[:3], "400")
	equal(t, "the statuses of requests", s.statuses(6, "/"), "200 200 200 200 200 429")
	equal(t, "requests that the upstream received", fmt.Sprint(received.Load()), "5")
}

// TestUpgradesToHTTPAreRemoved tests that the upstream does not see a request for an upgrade to
// another version of HTTP, and sees other upgrades.
func TestUpgradesToHTTPAreRemoved(t *testing.T) {
	var seen atomic.Value
	s := start(t, `:PORT {
		penstock 1000/1d
		reverse_proxy `+upstream(t, func(_ http.ResponseWriter, r *http.Request) {
		seen.Store(r.Header.Get("Upgrade") + "|" + r.Header.Get("HTTP2-Settings"))
	})+`
	}`)
	for protocols, want := range map[string]string{"h2c": "|", "H2C": "|", "websocket, h2c": "|", "HTTP/2.0": "|", "TLS/1.2, HTTP/1.1": "|", "h2c,": "|", "h2c-17": "|",
		"websocket": "websocket|AAMAAABkAAQAAP__", "SPDY/3.1": "spdy/3.1|AAMAAABkAAQAAP__", "https": "https|AAMAAABkAAQAAP__"} {
		equal(t, "the status with Upgrade: "+protocols, s.statuses(1, "/", "Connection", "Upgrade", "Upgrade", protocols, "HTTP2-Settings", "AAMAAABkAAQAAP__"), "200")
		equal(t, "Upgrade: "+protocols+" at the upstream", seen.Load().(string), want)
	}
}
