// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestEarlyDataCountsForNobody: a request in early data (0-RTT) over HTTP/3 has an address that is
// not verified. Here an attacker, who cannot receive packets at another client's address, sends
// such requests from that address. Such requests are not served, and the other client keeps its
// limit.
func TestEarlyDataCountsForNobody(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certtest.SelfSigned(t, cert, key, &x509.Certificate{DNSNames: []string{"localhost"}})
	log := filepath.Join(dir, "log")
	s := start(t, `{
	auto_https off
	log {
		output file `+log+`
		format json
	}
}
https://localhost:PORT {
	tls `+cert+` `+key+`
	log
	penstock 3/1h
	respond served
}`)
	const other = "127.0.0.9"
	sessions := tls.NewLRUClientSessionCache(8)
	own := s.quicTransport(net.IPv4(127, 0, 0, 1), sessions, false)
	if got := s.statusOverHTTP3(own, http.MethodGet); got != http.StatusOK {
		t.Fatalf("HTTP/3: status %d", got)
	}
	eventually.Until(t, 10*time.Second, "the server sends a session ticket", func() bool {
		_, ok := sessions.Get("localhost")
		return ok
	})
	forged := s.quicTransport(net.ParseIP(other), sessions, true)
	for range 3 {
		go s.statusOverHTTP3(forged, http3.MethodGet0RTT)
	}
	for _, line := range awaitLogged(t, log, `"remote_ip":"`+other+`"`, 3) {
		if !strings.Contains(line, `"status":425`) {
			t.Errorf("a request from an address that is not verified is served: %s", line)
		}
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(other)}}
	victim := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}
	defer victim.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:"+strconv.Itoa(s.port)+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "localhost"
	response, err := victim.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if left := response.Header.Get("X-RateLimit-Remaining"); response.StatusCode != http.StatusOK || left != "2" {
		t.Errorf("the other client gets status %d with %q left, want 200 with 2", response.StatusCode, left)
	}
	// Over a connection whose address is verified, the session can still be used.
	if got := s.statusOverHTTP3(own, http.MethodGet); got != http.StatusOK {
		t.Errorf("HTTP/3 after the handshake: status %d", got)
	}
}

// awaitLogged waits until n lines of a log contain a text, and returns them.
func awaitLogged(t testing.TB, log, text string, n int) (lines []string) {
	t.Helper()
	eventually.Until(t, 20*time.Second, "the requests are answered", func() bool {
		all, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		lines = lines[:0]
		for line := range strings.Lines(string(all)) {
			if strings.Contains(line, text) {
				lines = append(lines, line)
			}
		}
		return len(lines) == n
	})
	return lines
}

// statusOverHTTP3 sends a request over HTTP/3 and returns the status of the response, or 0 if there
// is none.
func (s *server) statusOverHTTP3(transport *http3.Transport, method string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	s.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, "https://localhost:"+strconv.Itoa(s.port)+"/", nil)
	if err != nil {
		return 0
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// server.quicTransport returns an HTTP/3 client that sends from the given address. If isDeaf is
// set, the client receives no packets.
func (s *server) quicTransport(from net.IP, sessions tls.ClientSessionCache, isDeaf bool) *http3.Transport {
	s.t.Helper()
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: from})
	if err != nil {
		s.t.Fatal(err)
	}
	packets := &quic.Transport{Conn: socket}
	if isDeaf {
		packets.Conn = deafConn{socket}
	}
	client := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost", ClientSessionCache: sessions},
		Dial: func(ctx context.Context, _ string, config *tls.Config, options *quic.Config) (*quic.Conn, error) {
			return packets.DialEarly(ctx, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.port}, config, options)
		}}
	s.t.Cleanup(func() {
		_ = client.Close()
		_ = packets.Close()
		_ = socket.Close()
	})
	return client
}

// deafConn drops every packet that it receives. An attacker who forges an address does not receive
// the packets that are sent to it either.
type deafConn struct{ net.PacketConn }

// ReadFrom implements [net.PacketConn].
func (d deafConn) ReadFrom(p []byte) (int, net.Addr, error) {
	for {
		if _, _, err := d.PacketConn.ReadFrom(p); err != nil {
			return 0, nil, err
		}
	}
}
