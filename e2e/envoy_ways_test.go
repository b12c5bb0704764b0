// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// waysPolicy has rules for several kinds of requests, and rules that depend on the response.
const waysPolicy = `name: shop
on_error: deny
TRUST
rules:
  - {name: all, limit: 1000/31d fixed_window, match: {path: /address}}
  - {name: upgrades, limit: 3/31d fixed_window, match: {path: /echo}, refund_on: {status: [5xx]}}
  - {name: failures, limit: 3/31d fixed_window, match: {path: /echo/free}, count_if: {status: [4xx]}}
  - {name: tunnels, limit: 1/31d fixed_window, match: {method: CONNECT}}
  - {name: bodies, limit: 100/31d fixed_window, match: {path: /body}, refund_on: {status: [5xx]}}
`

const (
	upgrading  = "use_remote_address: true, upgrade_configs: [{upgrade_type: websocket}, {upgrade_type: CONNECT}]"
	tunnelling = "{match: {connect_matcher: {}}, route: {cluster: upstream, upgrade_configs: [{upgrade_type: CONNECT, connect_config: {}}]}},"
)

// TestEnvoyWays tests that a request of any kind is limited once, counted for the right client, and
// forwarded unchanged.
func TestEnvoyWays(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name  string
		site  site
		trust string
		run   func(s *site, t *testing.T, b *bridge)
	}{
		{"use_remote_address", site{}, "trusted_proxies: [127.0.0.0/8]", (*site).knowsAddresses},
		{"skip_xff_append", site{manager: "use_remote_address: true, skip_xff_append: true", set: "xff_appended: false"},
			"trusted_proxies: [127.0.0.0/8]", (*site).knowsAddresses},
		{"xff_num_trusted_hops", site{manager: "use_remote_address: true, xff_num_trusted_hops: 1"}, "", (*site).knowsAddresses},
		{"xff_num_trusted_hops, skip_xff_append", site{manager: "use_remote_address: true, xff_num_trusted_hops: 1, skip_xff_append: true",
			set: "xff_appended: false"}, "", (*site).knowsAddresses},
		{"upgrades", site{manager: upgrading}, "", (*site).limitsUpgrades},
		{"tunnels", site{manager: upgrading, routes: tunnelling}, "", (*site).limitsTunnels},
		{"bodies", site{}, "", (*site).passesBodies},
		{"bodies, HTTP 2", site{two: true, cluster: http2Cluster}, "", (*site).passesBodies},
	}
	var sites []*site
	for i := range ways {
		ways[i].site.set += "\n" + longDeadline + "\non_error: deny"
		sites = append(sites, &ways[i].site)
	}
	useEnvoy(t, http.HandlerFunc(serveEcho), sites...)
	for i, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			s := sites[i]
			w.run(s, t, s.startBridge(t, strings.Replace(waysPolicy, "TRUST", w.trust, 1)))
		})
	}
}

// knowsAddresses tests that the client's address is the last one in X-Forwarded-For, which a
// trusted hop wrote. It does not matter what precedes this address.
func (s *site) knowsAddresses(t *testing.T, _ *bridge) {
	for i, c := range []struct {
		chain string
		left  int64
	}{{"192.0.2.7", 999}, {"192.0.2.7", 998}, {"198.51.100.1, 192.0.2.7", 997}, {"192.0.2.7, 198.51.100.1", 999}, {"192.0.2.7,198.51.100.1", 998},
		{"127.0.0.1, 192.0.2.7", 996}, {"garbage, 192.0.2.7", 995}, {"2001:db8::7", 999}, {"198.51.100.1, 2001:db8::8", 998}} {
		a := s.get(t, "/address", "X-Forwarded-For", c.chain)
		if got := a.number("X-RateLimit-Remaining"); a.status != http.StatusOK || got != c.left {
			t.Errorf("request %d, from %q: status %d, %d left, want %d", i+1, c.chain, a.status, got, c.left)
		}
	}
}

// serveEcho is an upstream that sends back what it receives over an upgraded connection. It answers
// other requests with the length and the hash of the body that it has read.
func serveEcho(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		_, _ = fmt.Fprintf(w, "%d %s %v %s", n, hex.EncodeToString(sum.Sum(nil)), err, r.Proto)
		return
	}
	connection, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer connection.Close()
	_, _ = io.WriteString(connection, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
	_, _ = io.Copy(connection, buffered)
}

// raw is a connection to which the test writes requests itself.
type raw struct {
	net.Conn
	reader *bufio.Reader
}

// openRequest sends the head of a request over a new connection, and returns the connection and the
// response.
func (s *site) openRequest(t *testing.T, head string) (*raw, *http.Response) {
	t.Helper()
	connection, err := net.Dial("tcp", s.address)
	if err == nil {
		t.Cleanup(func() { connection.Close() })
		_ = connection.SetDeadline(time.Now().Add(patience))
		_, err = io.WriteString(connection, strings.ReplaceAll(head, "\n", "\r\n")+"\r\n\r\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(head, " ")
	c := &raw{connection, bufio.NewReader(connection)}
	response, err := http.ReadResponse(c.reader, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	return c, response
}

// raw.echoes sends a text and reads it back.
func (c *raw) echoes(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Error(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c.reader, got); err != nil || string(got) != text {
		t.Errorf("%q came back as %q, %v", text, got, err)
	}
}

// limitsUpgrades tests that an upgraded request is limited once, however much is sent over its
// connection, and however the connection ends.
func (s *site) limitsUpgrades(t *testing.T, _ *bridge) {
	// under a limit of three
	for path, upgrades := range map[string]int{"/echo": 3, "/echo/free": 5} {
		head := "GET " + path + " HTTP/1.1\nHost: a.example\nUpgrade: websocket\nConnection: Upgrade\nSec-WebSocket-Key: x\nSec-WebSocket-Version: 13"
		var open []*raw
		for n := range upgrades {
			c, response := s.openRequest(t, head)
			got, want := response.Header.Get("X-RateLimit-Remaining"), fmt.Sprint(2-n)
			// the charge of an upgraded request is refunded, because of count_if
			if path == "/echo/free" {
				eventually.Until(t, patience, "it is given back", func() bool {
					return s.get(t, path).header.Get("X-RateLimit-Remaining") == "2"
				})
				want = got
			}
			if response.StatusCode != http.StatusSwitchingProtocols || got != want {
				t.Fatalf("%s, upgrade %d: %s, %q left, want %s", path, n, response.Status, got, want)
			}
			for range 10 {
				c.echoes(t, "some words")
			}
			open = append(open, c)
		}
		for _, c := range open {
			c.echoes(t, "still there")
		}
		open[0].Close()
		open[1].echoes(t, "one is gone")
		if _, response := s.openRequest(t, head); path == "/echo" && response.StatusCode != http.StatusTooManyRequests {
			t.Errorf("one too many: %s", response.Status)
		}
		open[1].echoes(t, "one was refused")
		for _, c := range open[1:] {
			c.Close()
		}
		waiting := "http." + s.name + ".downstream_rq_active"
		eventually.Until(t, patience, "all have ended", func() bool { return s.envoy.stat(waiting) <= 1 })
	}
	if a := s.get(t, "/echo"); a.status != http.StatusTooManyRequests {
		t.Errorf("when all have ended: status %d, want them to be charged", a.status)
	}
	if n := s.envoy.counter("penstock.panic"); n != 0 {
		t.Errorf("%d panics", n)
	}
}

// limitsTunnels tests that a CONNECT is counted as one request.
func (s *site) limitsTunnels(t *testing.T, _ *bridge) {
	const head = "CONNECT a.example:443 HTTP/1.1\nHost: a.example:443"
	c, response := s.openRequest(t, head)
	if response.StatusCode != http.StatusOK || response.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Fatalf("%s, %v", response.Status, response.Header)
	}
	if _, response := s.openRequest(t, head); response.StatusCode != http.StatusTooManyRequests {
		t.Errorf("a second tunnel: %s", response.Status)
	}
	for range 2 { // requests through the tunnel are not counted
		if _, err := io.WriteString(c, "POST /in/the/tunnel HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc"); err != nil {
			t.Fatal(err)
		}
		inner, err := http.ReadResponse(c.reader, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(inner.Body); err != nil || !strings.HasPrefix(string(body), "3 ") || inner.Header.Get("RateLimit") != "" {
			t.Errorf("through the tunnel: %q, %v, %v", body, err, inner.Header)
		}
	}
}

// passesBodies tests that a body that is larger than all buffers arrives complete although the
// bridge is slow to decide. It tests both versions of HTTP.
func (s *site) passesBodies(t *testing.T, b *bridge) {
	s.passesBodiesWhile(t, b.freeze, func() { b.signal(syscall.SIGCONT) })
}

// passesBodiesWhile sends bodies. Each begins after stop() was called and before resume() is
// called.
func (s *site) passesBodiesWhile(t *testing.T, stop, resume func()) {
	const size = 8 << 20
	body := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(body)
	sum := sha256.Sum256(body)
	for _, two := range []bool{false, true} {
		for _, reported := range []bool{false, true} {
			client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
			client.Transport.(*http.Transport).Protocols.SetHTTP1(!two)
			client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(two)
			// The MultiReader hides the length of the body.
			request, err := http.NewRequest("POST", "http://"+s.address+"/body", io.MultiReader(strings.NewReader(string(body))))
			if err != nil {
				t.Fatal(err)
			}
			if reported {
				request.ContentLength = size
			}
			received := "http." + s.name + ".downstream_cx_rx_bytes_total"
			before := s.envoy.stat(received)
			stop()
			ended := make(chan error, 1)
			go func() {
				response, err := client.Do(request)
				if err == nil {
					text, _ := io.ReadAll(response.Body)
					response.Body.Close()
					if want := fmt.Sprintf("%d %s <nil> HTTP/%d", size, hex.EncodeToString(sum[:]), version(s.two)); !strings.HasPrefix(string(text), want) ||
						response.StatusCode != http.StatusOK || response.Header.Get("RateLimit") == "" || response.ProtoMajor != version(two) {
						err = fmt.Errorf("status %d, %v, %q, want %s", response.StatusCode, response.Header, text, want)
					}
				}
				ended <- err
			}()
			eventually.Until(t, patience, "some of the body has come", func() bool { return s.envoy.stat(received) > before+1<<18 })
			resume()
			if err := <-ended; err != nil {
				t.Errorf("HTTP/2 %t, length told %t: %v", two, reported, err)
			}
			client.CloseIdleConnections()
		}
	}
}

// version returns the major version of HTTP, which is 2 if the argument is set.
func version(two bool) int {
	if two {
		return 2
	}
	return 1
}
