// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// kind is what an answer was.
type kind uint8

const (
	counted     kind = iota // let through, by a decision
	refused                 // 429
	uncounted               // let through without a decision: on_error allow
	unavailable             // 503: on_error deny
	broken                  // no answer at all, or one of another status
)

// exchange is one request as a client saw it.
type exchange struct {
	node  int
	path  string
	kind  kind
	begun time.Time
	took  time.Duration
}

// decided reports whether the store was asked and answered.
func (e exchange) decided() bool { return e.kind == counted || e.kind == refused }

// traffic is steady load on all nodes of a group.
type traffic struct {
	mu   sync.Mutex
	seen []exchange
	stop chan struct{}
	all  sync.WaitGroup
}

// The load: of each kind so many clients at each node, each with a request at a time and a pause after it.
const (
	faultClients = 2
	faultPause   = 10 * time.Millisecond
)

// startTraffic asks each node for each path, until end.
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
	pace := time.NewTicker(faultPause)
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
	case a.status == http.StatusServiceUnavailable:
		return unavailable
	case a.status != http.StatusOK:
		return broken
	case a.header.Get("RateLimit") == "":
		return uncounted
	}
	return counted
}

// until returns what was seen so far.
func (l *traffic) until() []exchange {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.seen)
}

// end returns all that was seen.
func (l *traffic) end() []exchange {
	close(l.stop)
	l.all.Wait()
	return l.seen
}

// awaitAnswered waits until each node has answered so many requests of each path that begun after an instant, as there are clients of
// a kind and one: nobody waits for the end of what is wrong.
func (l *traffic) awaitAnswered(t testing.TB, since time.Time, nodes int, paths []string) {
	t.Helper()
	await.Until(t, patience, "everybody is answered while the fault lasts", func() bool {
		answers := map[string]int{}
		for _, e := range l.until() {
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

// awaitDecided waits until each node has decided so many requests of each path in a row that begun after an instant, and returns how
// long after it the last began that was not decided.
func (l *traffic) awaitDecided(t testing.TB, since time.Time, nodes int, paths []string) (took time.Duration) {
	t.Helper()
	const inARow = 10
	await.Until(t, time.Minute, "all nodes decide again", func() bool {
		seen, most := l.until(), time.Duration(0)
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

// awaitRefused waits until each node has refused so many in a row.
func (l *traffic) awaitRefused(t testing.TB, nodes int) {
	t.Helper()
	const inARow = 10
	await.Until(t, time.Minute, "nothing is left of the limit", func() bool {
		rows := make([]int, nodes)
		for _, e := range l.until() {
			if rows[e.node]++; e.kind != refused {
				rows[e.node] = 0
			}
		}
		return slices.Min(rows) >= inARow
	})
}
