// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/redistest"
)

// noFilter stands where the filter would: it does nothing.
const noFilter = `{name: envoy.filters.http.cors, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}`

// served counts the requests that reach an upstream, by client.
type served struct{ byClient sync.Map }

func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, _ := s.byClient.LoadOrStore(r.Header.Get("X-Client"), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
	_, _ = io.WriteString(w, "ok")
}

func (s *served) of(client string) int64 {
	n, ok := s.byClient.Load(client)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// h2c returns a client with one connection over HTTP/2 that is open already.
func h2c(t testing.TB, address string) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	if _, err := ask(client, "http://"+address+"/", "X-Client", "opens-"+strconv.FormatInt(time.Now().UnixNano(), 36)); err != nil {
		t.Fatal(err)
	}
	return client
}

// burst sends all requests of one client at once, and returns how many answers had which status; 0 is none.
func burst(t testing.TB, address, client string, connections, each int) map[int]int {
	t.Helper()
	var clients []*http.Client
	for range connections {
		clients = append(clients, h2c(t, address))
	}
	statuses, ready, start := make(chan int, connections*each), new(sync.WaitGroup), make(chan struct{})
	for _, c := range clients {
		for range each {
			ready.Add(1)
			go func() {
				ready.Done()
				<-start
				a, err := ask(c, "http://"+address+"/", "X-Client", client)
				if err != nil {
					a.status = 0
				}
				statuses <- a.status
			}()
		}
	}
	ready.Wait()
	close(start)
	got := map[int]int{}
	for range connections * each {
		got[<-statuses]++
	}
	return got
}

// bystander asks as a client of its own all the while, with a name that is new each time, and returns how long each answer took.
// counted says that each must be admitted and counted.
func bystander(ctx context.Context, t testing.TB, address string, counted bool) (took []time.Duration) {
	client := &http.Client{Timeout: 30 * time.Second}
	for n := 0; ctx.Err() == nil; n++ {
		start := time.Now()
		a, err := ask(client, "http://"+address+"/", "X-Client", fmt.Sprintf("%p-%d", ctx, n))
		took = append(took, time.Since(start))
		if err != nil || a.status != http.StatusOK || counted && a.header.Get("RateLimit") == "" {
			t.Errorf("another client got status %d, RateLimit %q, %v", a.status, a.header.Get("RateLimit"), err)
		}
	}
	return took
}

// beside runs a burst beside another client, and returns what the burst got and how long the other one waited, sorted.
func beside(t testing.TB, address string, counted bool, burst func() map[int]int) (map[int]int, []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	took := make(chan []time.Duration)
	go func() { took <- bystander(ctx, t, address, counted) }()
	got := burst()
	cancel()
	waits := <-took
	slices.Sort(waits)
	return got, waits
}

// TestEnvoyBursts: with the settings that there are without any, and a Redis that is well, a client that sends any number of requests at
// once has exactly its limit admitted, and another one is served and counted meanwhile.
func TestEnvoyBursts(t *testing.T) {
	const limit = 5
	up, redis := new(served), redistest.Start(t)
	s, plain := new(site), &site{filter: noFilter}
	e := startEnvoy(t, wasm(t), up, s, plain)
	s.startBridge(t, fmt.Sprintf("name: shop\nrules: [{name: all, per: [\"header:X-Client\"], unverified: true, limit: %d/31d}]\n", limit), "--redis", redis.URL())
	s.isDecided(t)
	for _, c := range []struct{ connections, each int }{{1, 1}, {1, 20}, {1, 200}, {4, 500}, {4, 1000}, {10, 1000}} {
		all := c.connections * c.each
		t.Run(fmt.Sprintf("%d by %d", c.connections, c.each), func(t *testing.T) {
			name := fmt.Sprintf("burst-%d", all)
			got, waits := beside(t, s.address, true, func() map[int]int { return burst(t, s.address, name, c.connections, c.each) })
			_, without := beside(t, plain.address, false, func() map[int]int { return burst(t, plain.address, name+"-plain", c.connections, c.each) })
			t.Logf("%d at once: %d reached the upstream, answers %v; another client waited %v at most of %d, without a limiter %v of %d",
				all, up.of(name), got, waits[len(waits)-1], len(waits), without[len(without)-1], len(without))
			if want := min(int64(all), limit); up.of(name) != want || got[http.StatusOK] != int(want) {
				t.Errorf("%d reached the upstream and %d were answered by it, want %d", up.of(name), got[http.StatusOK], want)
			}
			if refused := got[http.StatusTooManyRequests]; refused != all-got[http.StatusOK] {
				t.Errorf("%d of the others were refused with 429: %v", refused, got)
			}
			if a, err := ask(http.DefaultClient, "http://"+s.address+"/", "X-Client", name); all > limit && (err != nil || a.status != http.StatusTooManyRequests) {
				t.Errorf("one more got status %d, %v", a.status, err)
			}
		})
	}
	for _, name := range []string{"degraded", "bridge_timeout", "breaker_open", "waiting_full", "panic"} {
		if n := e.counter("penstock." + name); n != 0 {
			t.Errorf("penstock.%s is %d", name, n)
		}
	}
}
