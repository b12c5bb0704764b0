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

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/freeport"
)

// idlers are connections that finish their handshake, answer each PING, and ask for nothing.
type idlers struct {
	t      *testing.T
	open   atomic.Int64
	ending sync.WaitGroup
	mu     sync.Mutex
	conns  []net.Conn
}

// idling returns some that leaves when the test ends.
func idling(t *testing.T) *idlers {
	c := &idlers{t: t}
	t.Cleanup(func() {
		for _, conn := range c.conns {
			conn.Close()
		}
		c.ending.Wait()
	})
	return c
}

// join opens so many connections to an address, from an address.
func (c *idlers) join(n int, from, to string) {
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

// stay returns when the connection is closed.
func (c *idlers) stay(conn net.Conn) {
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

// TestPrefacesFillNoPort: whoever connects and shows no token has a few of the places, for a few seconds.
func TestPrefacesFillNoPort(t *testing.T) {
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
			c := idling(t)
			c.join(many, "127.0.0.1", port.address)
			end, ended := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				for {
					select {
					case <-end:
						return
					default:
						c.join(1, "127.0.0.1", port.address)
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
				t.Logf("beside %d prefaces from 127.0.0.1 and as many as come meanwhile, of which %d are open, %d of 20 with the token from %s are served: %v", many, c.open.Load(), served, from, first)
				if served != 20 {
					t.Errorf("%d of 20 from %s", served, from)
				}
			}
			close(end)
			<-ended
			started := time.Now()
			await.Until(t, time.Minute, "those that ask for nothing are closed", func() bool { return c.open.Load() == 0 })
			t.Logf("the last of them is closed after %v", time.Since(started).Round(time.Second/10))
		})
	}
}

// dialerFrom returns what connects from an address.
func dialerFrom(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", to)
	}
}

// asksService asks the rate limit service over a connection of its own.
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

// connects says whether a connection gets the server's half of the handshake.
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

// asksOverHTTP asks as a filter does, over a connection of its own.
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
