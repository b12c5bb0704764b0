// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// idleConns is a set of HTTP/2 connections that complete their handshake, answer each PING, and
// send no request.
type idleConns struct {
	t      *testing.T
	open   atomic.Int64
	ending sync.WaitGroup
	mu     sync.Mutex
	conns  []net.Conn
}

// newIdleConns returns an empty set of connections. They are closed when the test ends.
func newIdleConns(t *testing.T) *idleConns {
	c := &idleConns{t: t}
	t.Cleanup(func() {
		for _, conn := range c.conns {
			conn.Close()
		}
		c.ending.Wait()
	})
	return c
}

// idleConns.add opens n connections from one address to another.
func (c *idleConns) add(n int, from, to string) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for range n {
		conn, err := dialer.Dial("tcp", to)
		if err != nil {
			c.t.Error(err)
			return
		}
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
		c.open.Add(1)
		c.ending.Go(func() {
			c.stay(conn)
			conn.Close()
			c.open.Add(-1)
		})
	}
}

// idleConns.stay answers frames until the connection is closed.
func (c *idleConns) stay(conn net.Conn) {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return
	}
	framer := http2.NewFramer(conn, conn)
	if framer.WriteSettings() != nil {
		return
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			err = framer.WritePing(true, frame.Data)
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = framer.WriteSettingsAck()
			}
		}
		if err != nil {
			return
		}
	}
}

// TestPrefacesFillNoPort tests that clients without a token occupy only a part of a port's
// connection slots, and only for a few seconds.
func TestPrefacesFillNoPort(t *testing.T) {
	t.Parallel()
	const many = 4096
	rls, xds, listen := freeport.Address(t), freeport.Address(t), freeport.Address(t)
	b := newBridge(t, "name: shop\nrules: [{name: all, limit: 1000000/1h}]\n", "--rls-listen", rls, "--xds-listen", xds,
		"--xds-wasm", "/etc/penstock.wasm", "--token", bridgeToken, "--listen", listen)
	b.listen = filepath.Join(t.TempDir(), "unused")
	b.runAt(t, "tcp", listen)
	asks := map[string]func(from string) error{
		rls:    func(from string) error { return asksService(t, from, rls) },
		xds:    func(from string) error { return connects(from, xds) },
		listen: func(from string) error { return asksOverHTTP(from, listen) },
	}
	for _, port := range []struct{ name, address string }{{"--rls-listen", rls}, {"--xds-listen", xds}, {"--listen", listen}} {
		t.Run(port.name, func(t *testing.T) {
			c := newIdleConns(t)
			c.add(many, "127.0.0.1", port.address)
			end, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				pace := time.NewTicker(2 * time.Millisecond) // uses connection slots again that become free
				defer pace.Stop()
				for {
					select {
					case <-end:
						return
					case <-pace.C:
						c.add(1, "127.0.0.1", port.address)
					}
				}
			}()
			for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
				served := 0
				var first error
				for range 20 {
					if err := asks[port.address](from); err == nil {
						served++
					} else if first == nil {
						first = err
					}
				}
				t.Logf("during %d prefaces from 127.0.0.1 and more, %d of them open, %d of 20 calls with the token from %s are served: %v", many, c.open.Load(), served, from, first)
				if served != 20 {
					t.Errorf("%d of 20 from %s", served, from)
				}
			}
			close(end)
			<-ended
			started := time.Now()
			eventually.Until(t, time.Minute, "idle connections are closed", func() bool { return c.open.Load() == 0 })
			t.Logf("the last of them is closed after %v", time.Since(started).Round(time.Second/10))
		})
	}
}

// dialerFrom returns a function that connects from the given address.
func dialerFrom(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", to)
	}
}

// asksService calls the rate limit service over a new connection.
func asksService(t *testing.T, from, to string) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+to, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(
		func(ctx context.Context, _ string) (net.Conn, error) { return dialerFrom(from)(ctx, to) }))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = pb.NewRateLimitServiceClient(conn).ShouldRateLimit(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+bridgeToken),
		&pb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "a", Value: "b"}}}}})
	return err
}

// connects opens an HTTP/2 connection. It returns an error if the server does not send its part of
// the handshake.
func connects(from, to string) error {
	conn, err := dialerFrom(from)(context.Background(), to)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return err
	}
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		return err
	}
	_, err = framer.ReadFrame()
	return err
}

// asksOverHTTP requests the policy over a new connection, as the filter does.
func asksOverHTTP(from, to string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialerFrom(from)(ctx, to)
	}}}
	a, err := ask(client, "http://penstock/v1/policy", "Authorization", "Bearer "+bridgeToken)
	if err == nil && a.status != http.StatusOK {
		err = fmt.Errorf("status %d", a.status)
	}
	return err
}
