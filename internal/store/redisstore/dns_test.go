// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/dnstest"
)

// TestDNSIsBack: a lost DNS query delays no call after DNS works again. A shared resolver would
// repeat the first query after 5 s, and all calls would wait for it.
func TestDNSIsBack(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Addr().String())
	a := address{network: "tcp", target: "redis.penstock.test:" + port}
	d := newDialer(a, nil, TimeoutDefault, TimeoutDefault)
	defer d.close()
	names := dnstest.Start(t, netip.MustParseAddr("127.0.0.1"))
	names.SetMode(dnstest.Silent)
	d.askDNS = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, names.Address)
	}
	begun := time.Now()
	var lost sync.WaitGroup
	for range 4 {
		lost.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			if _, err := d.dial(ctx); !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
				t.Errorf("DNS is silent: %v", err)
			}
		})
	}
	lost.Wait()
	names.SetMode(dnstest.Truthful)
	const repeats = 5 * time.Second // the timeout of a query, by default
	ctx, cancel := context.WithDeadline(context.Background(), begun.Add(repeats-time.Second))
	defer cancel()
	conn, err := d.dial(ctx)
	if err != nil {
		t.Fatalf("DNS is back: %v", err)
	}
	conn.Close()
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}
