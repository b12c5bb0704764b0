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

	"github.com/penstock/penstock/internal/test/redistest"
)

// noFilter is a filter that does nothing.
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

// h2c returns an HTTP/2 client without TLS whose connection is already open.
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

// sendBurst sends many requests of one client at once. It returns the number of answers by status.
// The status 0 means that there was no answer.
func sendBurst(t testing.TB, address, client string, connections, each int) map[int]int {
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

// laterMax bounds how much longer another client waits during a burst than during the same burst at
// a proxy without a limiter. For each size of burst, the test computes the difference between the
// client's median waits in the two cases, and compares the median of these differences with this
// bound. On an idle machine, this median is at most 10 ms. If a limiter made other clients wait
// until a burst is over, this median would be seconds.
const laterMax = 100 * time.Millisecond

// uncountedMax bounds the number of requests of other clients that are admitted without being
// counted during one burst. There may be some, because a busy machine misses deadlines of 50 ms.
const uncountedMax = 4

// askMeanwhile sends requests until ctx ends, each with a new client name, and returns how long
// each answer took. Every request must be admitted. If the argument named counted is set, all but
// uncountedMax of the requests must also be counted.
func askMeanwhile(ctx context.Context, t testing.TB, address string, counted bool) (took []time.Duration) {
	client := &http.Client{Timeout: 30 * time.Second}
	uncounted := 0
	for n := 0; ctx.Err() == nil; n++ {
		start := time.Now()
		a, err := ask(client, "http://"+address+"/", "X-Client", fmt.Sprintf("%p-%d", ctx, n))
		took = append(took, time.Since(start))
		if err != nil || a.status != http.StatusOK {
			t.Errorf("another client got status %d, %v", a.status, err)
		}
		if counted && a.header.Get("RateLimit") == "" {
			uncounted++
		}
	}
	if uncounted > uncountedMax {
		t.Errorf("%d of %d requests of another client were admitted uncounted", uncounted, len(took))
	}
	return took
}

// withOtherClient runs a burst while other clients send requests. It returns the answers to the
// burst, and the sorted waits of the other clients.
func withOtherClient(t testing.TB, address string, counted bool, burst func() map[int]int) (map[int]int, []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	took := make(chan []time.Duration)
	go func() { took <- askMeanwhile(ctx, t, address, counted) }()
	got := burst()
	cancel()
	waits := <-took
	slices.Sort(waits)
	return got, waits
}

// TestEnvoyBursts tests bursts of one client under the default settings and with a healthy Redis.
// Whatever the size of a burst, exactly the limit is admitted, and other clients are served and
// counted meanwhile. No other test runs in parallel with this one, because it uses the default
// deadlines.
func TestEnvoyBursts(t *testing.T) {
	const limit = 5
	up, redis := new(served), redistest.Start(t)
	s, plain := new(site), &site{filter: noFilter}
	e := useEnvoy(t, up, s, plain)
	b := s.startBridge(t, fmt.Sprintf("name: shop\nrules: [{name: all, per: [\"header:X-Client\"], unverified: true, limit: %d/31d}]\n", limit), "--redis", redis.URL())
	s.awaitDecided(t)
	var later []time.Duration // for each size, the difference of the medians
	sizes := []struct{ connections, each int }{{1, 1}, {1, 20}, {1, 200}, {4, 500}, {4, 1000}, {10, 1000}}
	sizes = examOr(sizes, sizes[:5])
	for _, c := range sizes {
		all := c.connections * c.each
		t.Run(fmt.Sprintf("%d by %d", c.connections, c.each), func(t *testing.T) {
			name := fmt.Sprintf("burst-%d", all)
			got, waits := withOtherClient(t, s.address, true, func() map[int]int { return sendBurst(t, s.address, name, c.connections, c.each) })
			_, without := withOtherClient(t, plain.address, false, func() map[int]int { return sendBurst(t, plain.address, name+"-plain", c.connections, c.each) })
			later = append(later, waits[len(waits)/2]-without[len(without)/2])
			t.Logf("%d at once: %d reached the upstream, answers %v; another client waited %v, %v at most of %d, without a limiter %v, %v of %d",
				all, up.of(name), got, waits[len(waits)/2], waits[len(waits)-1], len(waits), without[len(without)/2],
				without[len(without)-1], len(without))
			if want := min(int64(all), limit); up.of(name) != want || got[http.StatusOK] != int(want) {
				t.Errorf("%d reached the upstream and %d were answered by it, want %d", up.of(name), got[http.StatusOK], want)
			}
			// On a busy machine, a request of the burst may exceed the maximum wait, and is then
			// denied with 503.
			if denied := got[http.StatusTooManyRequests] + got[http.StatusServiceUnavailable]; denied != all-got[http.StatusOK] {
				t.Errorf("%d of the others were denied: %v", denied, got)
			}
			if a, err := ask(http.DefaultClient, "http://"+s.address+"/", "X-Client", name); all > limit && (err != nil || a.status != http.StatusTooManyRequests) {
				t.Errorf("one more got status %d, %v", a.status, err)
			}
		})
	}
	slices.Sort(later)
	if by := later[len(later)/2]; by > laterMax {
		t.Errorf("another client waited %v longer than without a limiter, by the median of %v", by, later)
	}
	for name, most := range map[string]int{"degraded": uncountedMax * len(sizes), "breaker_open": 0, "panic": 0} {
		if n := e.counter("penstock." + name); n > most {
			t.Errorf("penstock.%s is %d, and may be %d", name, n, most)
		}
	}
	t.Run("without a bridge", func(t *testing.T) {
		b.kill()
		for n := range 5 { // repeated, because the first requests of a client may reach several workers
			name := fmt.Sprint("alone-", n)
			got := sendBurst(t, s.address, name, 4, 250)
			if n := up.of(name); n != limit || got[http.StatusTooManyRequests] != 1000-limit {
				t.Errorf("%d reached the upstream, want %d; answers %v", n, limit, got)
			}
		}
		if n := e.counter("penstock.degraded_limited"); n == 0 {
			t.Error("penstock.degraded_limited has not grown")
		}
	})
}
