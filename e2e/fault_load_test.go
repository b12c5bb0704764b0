// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// kind classifies an answer.
type kind uint8

const (
	counted     kind = iota // admitted by a decision
	refused                 // 429
	uncounted               // admitted without a decision, by on_error: allow
	unavailable             // 503, by on_error: deny
	overloaded              // 503 with Retry-After: the request waited for too long behind others
	broken                  // no answer, or another status
)

// exchange is one request and its answer, as a client observes them.
type exchange struct {
	node  int
	path  string
	kind  kind
	begun time.Time
	took  time.Duration
}

// exchange.decided reports whether the store decided the request.
func (e exchange) decided() bool { return e.kind == counted || e.kind == refused }

// traffic is a steady load on all nodes of a group.
type traffic struct {
	mu   sync.Mutex
	seen []exchange
	stop chan struct{}
	all  sync.WaitGroup
}

// faultClients is the number of clients for each node and path. A client pauses after each answer.
const faultClients = 2

// faultPause returns how long a client pauses. In "make test" the pause is longer, so that the load
// is an eighth of the load in "make faults".
func faultPause() time.Duration {
	if *allFaults {
		return 10 * time.Millisecond
	}
	return 80 * time.Millisecond
}

// startTraffic begins to send requests for each path to each node. They end when traffic.end is
// called.
func startTraffic(nodes []string, paths []string) *traffic {
	l := &traffic{stop: make(chan struct{})}
	for node := range nodes {
		for _, path := range paths {
			for range faultClients {
				l.all.Go(func() { l.send(node, nodes[node], path) })
			}
		}
	}
	return l
}

func (l *traffic) send(node int, address, path string) {
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	pace := time.NewTicker(faultPause())
	defer pace.Stop()
	for {
		e := exchange{node: node, path: path, begun: time.Now()}
		a, err := ask(client, "http://"+address+path)
		e.took, e.kind = time.Since(e.begun), kindOf(a, err)
		l.mu.Lock()
		l.seen = append(l.seen, e)
		l.mu.Unlock()
		select {
		case <-l.stop:
			return
		case <-pace.C:
		}
	}
}

func kindOf(a answer, err error) kind {
	switch {
	case err != nil:
		return broken
	case a.status == http.StatusTooManyRequests:
		return refused
	case a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "":
		return overloaded
	case a.status == http.StatusServiceUnavailable:
		return unavailable
	case a.status != http.StatusOK:
		return broken
	case a.header.Get("RateLimit") == "":
		return uncounted
	}
	return counted
}

// exchangesSoFar returns the exchanges up to now.
func (l *traffic) exchangesSoFar() []exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// traffic.end stops the load and returns all exchanges.
func (l *traffic) end() []exchange {
	close(l.stop)
	l.all.Wait()
	return l.seen
}

// awaitAnswered waits until each node has answered more requests on each path than there are
// clients, counting only requests that were sent after the instant named since. This shows that
// clients are answered before the fault ends.
func (l *traffic) awaitAnswered(t testing.TB, since time.Time, nodes int, paths []string) {
	t.Helper()
	eventually.Until(t, patience, "everybody is answered while the fault lasts", func() bool {
		answers := map[string]int{}
		for _, e := range l.exchangesSoFar() {
			if e.begun.After(since) {
				answers[fmt.Sprint(e.node, e.path)]++
			}
		}
		for node := range nodes {
			for _, path := range paths {
				if answers[fmt.Sprint(node, path)] <= faultClients {
					return false
				}
			}
		}
		return true
	})
}

// awaitDecided waits until every node has decided ten requests in a row on every path, counting
// only requests that were sent after the instant named since. The result named took is the time
// from this instant until the last request that was not decided had ended.
func (l *traffic) awaitDecided(t testing.TB, since time.Time, nodes int, paths []string) (took time.Duration) {
	t.Helper()
	const inARow = 10
	eventually.Until(t, time.Minute, "all nodes decide again", func() bool {
		seen, most := l.exchangesSoFar(), time.Duration(0)
		for node := range nodes {
			for _, path := range paths {
				row := 0
				for _, e := range seen {
					if e.node != node || e.path != path || e.begun.Before(since) {
						continue
					}
					if row++; !e.decided() {
						row, most = 0, max(most, e.begun.Add(e.took).Sub(since))
					}
				}
				if row < inARow {
					return false
				}
			}
		}
		took = most
		return true
	})
	return took
}

// awaitDenied waits until each node has denied ten requests in a row.
func (l *traffic) awaitDenied(t testing.TB, nodes int) {
	t.Helper()
	const inARow = 10
	eventually.Until(t, time.Minute, "nothing is left of the limit", func() bool {
		rows := make([]int, nodes)
		for _, e := range l.exchangesSoFar() {
			if rows[e.node]++; e.kind != refused {
				rows[e.node] = 0
			}
		}
		return slices.Min(rows) >= inARow
	})
}
