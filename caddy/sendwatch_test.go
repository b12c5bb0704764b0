// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"net"
	"net/http"
	"net/http/fcgi"
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy/fastcgi"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy/forwardauth"

	"github.com/penstock/penstock/internal/test/freeport"
)

// TestARetriedRequestIsNotRefunded: an upstream ends when it has received a request, so the retry
// of reverse_proxy cannot connect. The request counts, because the upstream received it.
func TestARetriedRequestIsNotRefunded(t *testing.T) {
	for name, proxy := range map[string]string{
		"HTTP/1.1":    "reverse_proxy UPSTREAM {\nRETRY\n}",
		"h2c":         "reverse_proxy h2c://UPSTREAM {\nRETRY\n}",
		"FastCGI":     "reverse_proxy UPSTREAM {\nRETRY\ntransport fastcgi\n}",
		"php_fastcgi": "php_fastcgi UPSTREAM {\nRETRY\ntry_files /index.php\n}",
	} {
		for _, retry := range []string{"lb_retries 2", "lb_try_duration 20ms\nlb_try_interval 5ms"} {
			t.Run(name+" "+retry, func(t *testing.T) {
				address := freeport.Address(t)
				s := startRefunding(t, strings.NewReplacer("UPSTREAM", address, "RETRY", retry).Replace(proxy))
				for i, want := range []int{502, 502, 502, 429} {
					received := listenOnce(t, address)
					if got := s.get("/").StatusCode; got != want {
						t.Fatalf("request %d: status %d, want %d", i, got, want)
					}
					if want == 502 && !<-received {
						t.Fatalf("request %d did not reach the upstream", i)
					}
				}
			})
		}
	}
}

// TestAnUnreachableUpstreamRefunds tests that a request is refunded if no attempt could connect.
// The FastCGI transport does not report its attempts, so a request with retries counts there.
func TestAnUnreachableUpstreamRefunds(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	for name, c := range map[string]struct{ proxy, statuses string }{
		"HTTP":                         {"reverse_proxy UPSTREAM", "502 502 502 502"},
		"HTTP with retries":            {"reverse_proxy UPSTREAM {\nlb_retries 2\n}", "502 502 502 502"},
		"h2c with retries":             {"reverse_proxy h2c://UPSTREAM {\nlb_retries 2\n}", "502 502 502 502"},
		"FastCGI":                      {"php_fastcgi UPSTREAM {\ntry_files /index.php\n}", "502 502 502 502"},
		"FastCGI with retries":         {"php_fastcgi UPSTREAM {\ntry_files /index.php\nlb_retries 2\n}", "502 502 502 429"},
		"HTTP behind another upstream": {"forward_auth " + upstream(t, ok) + " {\nuri /\n}\nreverse_proxy UPSTREAM", "502 502 502 429"},
		"HTTP behind FastCGI": {"php_fastcgi " + fastcgiUpstream(t, ok) + ` {
			try_files /index.php
			handle_response {
				reverse_proxy UPSTREAM
			}
		}`, "502 502 502 429"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startRefunding(t, strings.ReplaceAll(c.proxy, "UPSTREAM", freeport.Address(t)))
			equal(t, "statuses", s.statuses(4, "/"), c.statuses)
		})
	}
}

// startRefunding starts a site with a limit of 3 requests. Requests that end with an error of the
// upstream are refunded.
func startRefunding(t *testing.T, proxy string) *server {
	t.Helper()
	return start(t, `:PORT {
		penstock {
			name shop
			rule all {
				limit 3/30d
				refund_on status 5xx
			}
		}
		route {
			`+proxy+`
		}
	}`)
}

// fastcgiUpstream starts a FastCGI server and returns its address.
func fastcgiUpstream(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = fcgi.Serve(listener, h) }()
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// listenOnce starts an upstream that ends when it has received a request. The channel then receives
// true. It receives false if the upstream has ended without a request.
func listenOnce(t *testing.T, address string) (received <-chan bool) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	ended := make(chan bool, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			ended <- false
			return
		}
		n, _ := conn.Read(make([]byte, 4096))
		listener.Close()
		conn.Close()
		ended <- n > 0
	}()
	return ended
}
