// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// dialFrom returns a dialer that connects from an address of this machine.
func dialFrom(t *testing.T, address string) *net.Dialer {
	t.Helper()
	if _, loopback, err := net.ParseCIDR("127.0.0.0/8"); err != nil || !loopback.Contains(net.ParseIP(address)) {
		t.Fatal(address)
	}
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: patience}
}

// makeUpToken returns a random text that has the form of a token.
func makeUpToken() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // it cannot fail
	return "pst_" + hex.EncodeToString(random)
}

// person is a caller with a token.
type person struct {
	http.Client
	url, authorization string
}

// running.person returns a caller whose connections come from the address in the parameter from. If
// the parameter stays is true, the caller keeps its connection. Otherwise each request has a
// connection of its own.
func (r *running) person(t *testing.T, from, token string, stays bool) *person {
	p := &person{url: "http://" + r.address, authorization: "Bearer " + token}
	p.Timeout = patience
	p.Transport = &http.Transport{DialContext: dialFrom(t, from).DialContext, DisableKeepAlives: !stays}
	return p
}

// person.statusOf sends a request with the person's token, and returns the status of the answer.
func (p *person) statusOf(method, path string) int {
	r, err := http.NewRequest(method, p.url+path, nil)
	if err != nil {
		return 0
	}
	r.Header.Set("Authorization", p.authorization)
	response, err := p.Do(r)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // the status says enough
	return response.StatusCode
}

// awaitToken waits until the process is ready, and returns the first token.
func (r *running) awaitToken(t *testing.T) (token string) {
	t.Helper()
	eventually.Until(t, patience, "the process is ready", func() bool { status, _ := r.status("/readyz"); return status == http.StatusOK })
	return *r.token.Load()
}

// TestCallersWithoutATokenTakeNoTurns tests that people with tokens are served while attackers send
// made-up tokens and slow bodies, some of them from the address of such a person. A person whose
// token was not used before is served as well.
func TestCallersWithoutATokenTakeNoTurns(t *testing.T) {
	t.Parallel()
	r := run(t, pgtest.Database(t), redistest.Start(t).URL())
	token := r.awaitToken(t)
	ann, carl := r.person(t, "127.0.0.1", token, true), r.person(t, "127.0.0.8", token, false)
	if status := ann.statusOf("GET", "/v1/clients"); status != http.StatusOK {
		t.Fatal(status)
	}
	ctx, stop := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	var refused atomic.Int64
	for i := range 120 {
		from := dialFrom(t, fmt.Sprintf("127.0.0.%d", 1+i%4))
		attack.Go(func() {
			for ctx.Err() == nil {
				if sendSlowly(ctx, from, r.address) {
					refused.Add(1)
				}
			}
		})
	}
	eventually.Until(t, patience, "the attack is under way", func() bool { return refused.Load() > 500 })
	statuses := map[int]int{}
	for range 50 {
		statuses[ann.statusOf("GET", "/v1/clients")]++
		statuses[carl.statusOf("GET", "/v1/clients")]++
	}
	if statuses[http.StatusOK] != 100 {
		t.Errorf("the answers to 100 requests of people, by status: %v", statuses)
	}
	bob := r.person(t, "127.0.0.9", token, false)
	bob.authorization = "bearer " + token // a header that the process has not verified before
	eventually.Until(t, patience, "a token that was not used before is served", func() bool { return bob.statusOf("GET", "/v1/clients") == http.StatusOK })
	stop()
	attack.Wait()
}

// sendSlowly sends the head of a request with a made-up token, and one byte of the body. The result
// is true if the request was refused.
func sendSlowly(ctx context.Context, from *net.Dialer, address string) bool {
	c, err := from.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	_ = c.SetDeadline(time.Now().Add(patience)) // without a deadline, a hang would fail the test elsewhere
	if _, err := fmt.Fprintf(c, "POST /v1/clients/user:x/edits HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: 60000\r\n\r\n{", makeUpToken()); err != nil {
		return false
	}
	head := make([]byte, 12)
	_, err = io.ReadFull(c, head)
	return err == nil && strings.HasPrefix(string(head), "HTTP/1.1 4")
}

// TestSilentConnectionsFillNoPort tests that people can connect while others open more silent
// connections than the port accepts at once, and open each of them again after it was closed.
func TestSilentConnectionsFillNoPort(t *testing.T) {
	t.Parallel()
	r := run(t, pgtest.Database(t), redistest.Start(t).URL())
	ann := r.person(t, "127.0.0.1", r.awaitToken(t), false)
	ctx, stop := context.WithCancel(t.Context())
	var attack sync.WaitGroup
	var opened atomic.Int64
	for i := range connectionsMax + 100 {
		from := dialFrom(t, fmt.Sprintf("127.0.0.%d", 2+i%4))
		attack.Go(func() {
			for range 3 {
				if c, err := from.DialContext(ctx, "tcp", r.address); err == nil {
					opened.Add(1)
					until := context.AfterFunc(ctx, func() { c.Close() })
					_, _ = c.Read(make([]byte, 1)) // until it is closed
					until()
					c.Close()
				}
			}
		})
	}
	eventually.Until(t, patience, "the port is full", func() bool { return opened.Load() > connectionsMax })
	deadline := time.Now().Add(patience)
	for n := range 20 {
		if status := ann.statusOf("GET", "/v1/clients"); status != http.StatusOK || time.Now().After(deadline) {
			t.Errorf("request %d of a person: %d", n, status)
			break
		}
	}
	stop()
	attack.Wait()
}
