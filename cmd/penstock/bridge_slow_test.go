// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/internal/envoy/bridge"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestHalfSentCallsDelayNoOthers keeps 700 calls incomplete over each version of HTTP. On as many
// other connections, it keeps a header incomplete. The bridge answers at most 8 calls at once. The
// test checks that complete calls are answered throughout, and that the bridge ends each incomplete
// call at the call's time limit. On a very busy machine, an incomplete call may end without an
// answer, because the time limit of its reply has passed, too.
func TestHalfSentCallsDelayNoOthers(t *testing.T) {
	const half = 700
	t.Setenv("BUCKET_SIZE", "1000000")
	r := startBridge(t, "--calls-max", "8")
	var ended [3]atomic.Int64 // by kind: half a body over HTTP/1.1 and over HTTP/2, half a header
	for range half {
		go func() {
			r.sendHalf(t, "POST /v1/check HTTP/1.1\r\nHost: b\r\nContent-Length: 99\r\n\r\n{", "HTTP/1.1 408", &ended[0])
		}()
		go func() { r.sendHalf(t, "POST /v1/check HTTP/1.1\r\nHost: b\r\nX-", "HTTP/1.1 400", &ended[2]) }()
	}
	two := newHTTPClient(true)
	for range half {
		go func() {
			body, rest := io.Pipe()
			defer rest.Close()
			go func() { _, _ = rest.Write([]byte("{")) }()
			begun := time.Now()
			response, err := two.Post("http://"+r.address+"/v1/check", "application/json", body)
			switch {
			case err != nil && time.Since(begun) >= bridge.ReplyTime:
				ended[1].Add(1)
				return
			case err != nil:
				t.Error(err)
				return
			}
			response.Body.Close()
			if response.StatusCode == http.StatusRequestTimeout && response.ProtoMajor == 2 {
				ended[1].Add(1)
			}
		}()
	}
	one, good, peak := newHTTPClient(false), 0, 0
	eventually.Until(t, time.Minute, "half-sent calls are ended", func() bool {
		for i, client := range []*http.Client{one, two} {
			if status, text := r.do(client, "POST", "/v1/check", `{"ip":"192.0.2.7"}`); status != 200 {
				t.Fatalf("good call %d over way %d: %d %s", good, i, status, text)
			}
			good++
		}
		_, text := r.do(one, "GET", "/metrics", "")
		var now int
		if _, err := fmt.Sscanf(text[strings.Index(text, "\npenstock_bridge_calls_receiving "):], "\npenstock_bridge_calls_receiving %d", &now); err != nil {
			t.Fatal(err)
		}
		peak = max(peak, now)
		return ended[0].Load() == half && ended[1].Load() == half && ended[2].Load() == half
	})
	if good < 20 || peak < 100 {
		t.Errorf("%d good calls were answered beside %d at most", good, peak)
	}
	_, text := r.do(one, "GET", "/metrics", "")
	for _, want := range []string{"calls_receiving 0", "calls_under_way 0", fmt.Sprintf(`calls_total{result="late"} %d`, 2*half)} {
		if !strings.Contains(text, "penstock_bridge_"+want) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
}

// running.sendHalf sends a text over its own connection. It adds the connection to the counter
// named ended once an answer arrives that begins with want, or once the connection ends without an
// answer after the time limit of a reply.
func (r *running) sendHalf(t *testing.T, text, want string, ended *atomic.Int64) {
	connection, err := net.Dial("tcp", r.address)
	if err != nil {
		t.Error(err)
		return
	}
	defer connection.Close()
	begun := time.Now()
	if _, err := io.WriteString(connection, text); err != nil {
		t.Error(err)
	}
	said, err := io.ReadAll(connection)
	if err == nil && strings.HasPrefix(string(said), want) || len(said) == 0 && time.Since(begun) >= bridge.ReplyTime {
		ended.Add(1)
	}
}

// pipes is a listener whose connections stay within this process.
type pipes struct {
	came   chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.came:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.came <- far
	return near, nil
}

// runInBubble serves a policy in a bubble of package synctest, where time passes only while all
// goroutines wait.
func runInBubble(t *testing.T, text string, story func(t *testing.T, p *pipes)) {
	synctest.Test(t, func(t *testing.T) {
		document, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := bridge.New(bridge.Options{Policy: document, Store: store})
		if err != nil {
			t.Fatal(err)
		}
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		server, served := httpServer(b.Handler(), nil, slog.New(slog.DiscardHandler)), make(chan error, 1)
		go func() { served <- serveHTTP(server, p) }()
		story(t, p)
		for _, err := range []error{server.Close(), <-served, b.Close(), store.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLongWaitsAreAnswered tests that the time limits of calls and replies do not apply while a
// request waits under a throttle rule.
func TestLongWaitsAreAnswered(t *testing.T) {
	const slow = "rules: [{name: slow, limit: 1/1m fixed_window, action: throttle, throttle: {max_delay: 1m, max_waiting: 9}}]"
	for _, two := range []bool{false, true} {
		runInBubble(t, slow, func(t *testing.T, p *pipes) {
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
			client := newHTTPClient(two)
			client.Transport.(*http.Transport).DialContext = p.dial
			defer client.CloseIdleConnections()
			r := &running{t: t, address: "bridge"}
			if status, text := r.do(client, "POST", "/v1/check", `{"ip":"192.0.2.7"}`); status != 200 {
				t.Fatal(status, text)
			}
			status, said := callWaiting(t, client)
			if elapsed := time.Since(time.Now().Truncate(time.Minute)); status != 200 || said == 0 || elapsed > time.Second {
				t.Errorf("HTTP/2 %t: status %d, %d bytes, %v into the minute", two, status, said, elapsed)
			}
		})
	}
}

// TestSilentConnectionsAreClosed tests that the bridge closes an HTTP/2 connection whose header
// does not arrive completely, and one whose client does not read its reply.
func TestSilentConnectionsAreClosed(t *testing.T) {
	runInBubble(t, "rules: [{name: api, limit: 1000/1m}]", func(t *testing.T, p *pipes) {
		near, _ := p.dial(t.Context(), "", "")
		go func() {
			settings, header := make([]byte, 9), make([]byte, 9)
			settings[3] = 4 // SETTINGS, empty
			// a HEADERS frame of one byte, without the flag END_HEADERS
			header[2], header[3] = 1, 1
			binary.BigEndian.PutUint32(header[5:], 1) // on stream 1
			// errors of Write are ignored, because the test then reads whether the bridge has
			// closed the connection
			_, _ = near.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			_, _ = near.Write(settings)
			_, _ = near.Write(append(header, 0x82))
		}()
		start := time.Now()
		_, err := io.Copy(io.Discard, near)
		if after := time.Since(start); err != nil || after < pingTime || after > pingTime+pongTime+time.Second {
			t.Errorf("half a header over HTTP/2: %v after %v", err, after)
		}
		deaf, _ := p.dial(t.Context(), "", "")
		if _, err := io.WriteString(deaf, "POST /v1/check HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * bridge.ReplyTime) // the client does not read
		if _, err := bufio.NewReader(deaf).ReadString('\n'); err == nil {
			t.Error("a reply that nobody read is there all the same")
		}
	})
}

// TestFloodsWithoutTheTokenAreRestrained tests that a caller without the token gets its answers
// later if it makes many calls over HTTP/1.1, and has to connect again over HTTP/2, whatever the
// answers are.
func TestFloodsWithoutTheTokenAreRestrained(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BUCKET_SIZE", "3")
	r := startBridge(t, "--token-file", file)
	for path, want := range map[string]int{"/v1/policy": 401, "/v1/check": 405, "/unknown": 404, "/healthz": 200} {
		for _, two := range []bool{false, true} {
			client, begun := newHTTPClient(two), time.Now()
			var connected atomic.Int64
			dialer := new(net.Dialer)
			client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				connected.Add(1)
				return dialer.DialContext(ctx, network, address)
			}
			for range 150 {
				response, err := client.Get("http://" + r.address + path)
				if err != nil && two {
					continue // the bridge closes a connection before it has sent all answers
				}
				if err != nil || response.StatusCode != want {
					t.Fatal(path, response, err)
				}
				_, _ = io.Copy(io.Discard, response.Body) // so that the connection is used again
				response.Body.Close()
			}
			client.CloseIdleConnections()
			if took := time.Since(begun); two && connected.Load() == 1 || !two && took < 400*time.Millisecond {
				t.Errorf("%s: 150 calls over %d connections took %v", path, connected.Load(), took)
			}
		}
	}
}

// callWaiting makes a call that waits under the throttle rule, and returns the status and the size
// of the reply.
func callWaiting(t *testing.T, client *http.Client) (status, bytes int) {
	t.Helper()
	known, err := client.Get("http://bridge/v1/policy")
	if err != nil {
		t.Fatal(err)
	}
	known.Body.Close()
	body := wire.AppendCall(nil, strings.Trim(known.Header.Get("Etag"), `"`))
	body = wire.AppendItem(body, &wire.Item{Kind: wire.KindWait, Ask: wire.Ask{Path: "/", Method: "GET", Peer: netip.MustParseAddr("192.0.2.7")}})
	response, err := client.Post("http://bridge/v1/check", wire.ContentType, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, len(said)
}
