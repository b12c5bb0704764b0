// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/redistest"
)

// proxy simulates network faults between a store and a server.
type proxy struct {
	t        testing.TB
	target   string
	listener net.Listener

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	pings map[net.Conn]bool // connections that began with a PING
	delay time.Duration     // the delay before each piece of a reply
	drop  bool              // whether replies are dropped
	busy  bool              // whether the connections in pings have no faults
	// connections are reset after this many more bytes of replies; 0 means never
	resetAt  int
	upstream int // bytes sent to the server
}

// newProxy returns a proxy of the server that ends with the test.
func newProxy(t testing.TB, server *redistest.Server) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, target: server.Addr, listener: listener, conns: map[net.Conn]struct{}{}, pings: map[net.Conn]bool{}}
	t.Cleanup(func() {
		listener.Close()
		p.cut()
	})
	go p.accept()
	return p
}

func (p *proxy) url() string { return "redis://" + p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("unix", p.target)
		if err != nil {
			near.Close()
			continue
		}
		p.mu.Lock()
		p.conns[near], p.conns[far] = struct{}{}, struct{}{}
		p.mu.Unlock()
		go p.ask(near, far)
		go p.answer(near, far)
	}
}

// proxy.ask forwards the data that the store sends. If the store closes its end, data sent before
// that still arrives.
func (p *proxy) ask(near, far net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := near.Read(buf)
		if n > 0 {
			p.mu.Lock()
			p.upstream += n
			if _, known := p.pings[near]; !known {
				p.pings[near] = bytes.HasPrefix(buf[:n], ping)
			}
			p.mu.Unlock()
			if _, err := far.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = far.(*net.UnixConn).CloseWrite()
}

// proxy.answer forwards the server's replies, at the configured speed.
func (p *proxy) answer(near, far net.Conn) {
	defer p.end(near, far)
	buf := make([]byte, 64<<10)
	for {
		n, err := far.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		delay, drop, reset := p.delay, p.drop, false
		if p.busy && p.pings[near] {
			delay, drop = 0, false
		}
		if p.resetAt > 0 {
			if p.resetAt <= n {
				n, reset, p.resetAt = p.resetAt, true, 0
			} else {
				p.resetAt -= n
			}
		}
		p.mu.Unlock()
		if delay > 0 {
			<-time.After(delay)
		}
		if drop {
			continue
		}
		if _, err := near.Write(buf[:n]); err != nil {
			_, _ = io.Copy(io.Discard, far)
			return
		}
		if reset {
			_ = near.(*net.TCPConn).SetLinger(0)
			return
		}
	}
}

func (p *proxy) end(near, far net.Conn) {
	near.Close()
	far.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, near)
	delete(p.conns, far)
	delete(p.pings, near)
}

// proxy.cut closes every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// proxy.set changes the simulated faults.
func (p *proxy) set(delay time.Duration, drop bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay, p.drop = delay, drop
}

// proxy.countPinged returns the number of connections that began with a PING.
func (p *proxy) countPinged() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, is := range p.pings {
		if is {
			n++
		}
	}
	return n
}

// setBusy simulates a server that answers PINGs at once, whatever the other faults.
func (p *proxy) setBusy(busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = busy
}

// resetAfter makes the proxy reset a connection after the given number of further bytes of replies.
func (p *proxy) resetAfter(bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resetAt = bytes
}
