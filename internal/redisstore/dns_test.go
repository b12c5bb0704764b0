// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestDNSIsBack: questions that DNS did not answer hold nobody up once it does. A resolver that all share would repeat the first
// one after 5 s, and have all wait for it.
func TestDNSIsBack(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Addr().String())
	a := address{network: "tcp", target: "redis.penstock.test:" + port}
	d := newDialer(a, nil)
	defer d.close()
	var back atomic.Bool
	asked := startDNS(t, &back)
	d.askDNS = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, asked)
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
	back.Store(true)
	const repeats = 5 * time.Second // of a question, by default
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

// startDNS runs a DNS server until the test ends that, once it is back, says of every name that it is this machine.
func startDNS(t *testing.T, back *atomic.Bool) (address string) {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			n, from, err := socket.ReadFrom(question)
			if err != nil {
				return
			}
			end := 12 // behind the header: labels, each with its length, the root, type and class
			for end < n && question[end] != 0 {
				end += 1 + int(question[end])
			}
			if end += 5; end > n || !back.Load() {
				continue
			}
			reply := append([]byte{question[0], question[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, question[12:end]...)
			if question[end-3] == 1 { // of IPv4
				reply[7] = 1
				reply = append(reply, 0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1)
			}
			_, _ = socket.WriteTo(reply, from)
		}
	}()
	return socket.LocalAddr().String()
}
