// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// besidePace is the pause between two requests of the neighbour.
const besidePace = 20 * time.Millisecond

// uncountedMost is how many of a hundred requests of the neighbour, and of any number, may be let through uncounted: a deadline of 50 ms
// does not hold on a machine that has other work for longer. An attack that opens a breaker leaves most of them uncounted.
const uncountedMost = 4

// neighbour is a client with a limit that it is far from, which asks at a steady pace while another one attacks.
type neighbour struct {
	t      testing.TB
	front  *front
	client *http.Client
	end    chan struct{}
	group  sync.WaitGroup
	seen   calm
}

// calm is what a neighbour saw.
type calm struct {
	took                      []time.Duration
	denied, uncounted, failed int
	first                     string // of what was none of a counted 200
}

// newNeighbour returns one with an address of its own, connected already: what it measures is requests. It waits until the
// front decides, over connections of which each worker of Envoy has some: a row before may have opened their breakers.
func newNeighbour(t testing.TB, f *front, from string) *neighbour {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}}
	b := &neighbour{t: t, front: f, end: make(chan struct{}), client: &http.Client{Timeout: 30 * time.Second, Transport: transport}}
	await.Until(t, patience, f.name+" decides, whatever was before", func() bool {
		const connections = 16
		c := b.asks(connections)
		return c.denied+c.uncounted+c.failed == 0
	})
	transport = transport.Clone()
	transport.DisableKeepAlives = false
	b.client.Transport = transport
	t.Cleanup(b.client.CloseIdleConnections)
	b.asks(1)
	return b
}

// start asks until stop.
func (b *neighbour) start() {
	b.group.Go(func() {
		pace := time.NewTicker(besidePace)
		defer pace.Stop()
		for {
			b.ask(&b.seen)
			select {
			case <-b.end:
				return
			case <-pace.C:
			}
		}
	})
}

// stop returns what was seen since start.
func (b *neighbour) stop() calm {
	close(b.end)
	b.group.Wait()
	return b.seen
}

// asks asks some times, one after the other.
func (b *neighbour) asks(n int) (c calm) {
	for range n {
		b.ask(&c)
	}
	return c
}

func (b *neighbour) ask(c *calm) {
	begun := time.Now()
	status, counted, err := b.once()
	c.took = append(c.took, time.Since(begun))
	what := ""
	switch {
	case err != nil:
		c.failed, what = c.failed+1, err.Error()
	case status == http.StatusTooManyRequests:
		c.denied, what = c.denied+1, "429"
	case status != http.StatusOK:
		c.failed, what = c.failed+1, fmt.Sprint("status ", status)
	case !counted && !b.front.bare:
		c.uncounted, what = c.uncounted+1, "200 without a decision"
	}
	if c.first == "" {
		c.first = what
	}
}

// once sends one request. It was counted if the answer tells of a limit: on_error tells of none.
func (b *neighbour) once() (status int, counted bool, err error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+b.front.address+besidePath, nil)
	if err != nil {
		return 0, false, err
	}
	request.Header.Set(besideHeader, "1")
	response, err := b.client.Do(request)
	if err != nil {
		return 0, false, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header.Get("X-RateLimit-Limit") != "", err
}

func (c calm) median() time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(c.took))
	return sorted[len(sorted)/2]
}

func (c calm) String() string {
	if len(c.took) == 0 {
		return "nothing asked"
	}
	return fmt.Sprintf("%v / %v (%d; %d, %d, %d)", c.median().Round(time.Millisecond/10), slices.Max(c.took).Round(time.Millisecond),
		len(c.took), c.denied, c.uncounted, c.failed)
}

// holds asserts what a neighbour is promised.
func (c calm) holds(report func(format string, args ...any), when string, soon bool) {
	if c.denied+c.failed > 0 || c.uncounted > max(uncountedMost, len(c.took)*uncountedMost/100) {
		report("%s, of %d requests of a neighbour %d were denied, %d let through uncounted and %d not served; first: %s", when,
			len(c.took), c.denied, c.uncounted, c.failed, c.first)
	}
	if p50 := c.median(); soon && p50 > besideWithin {
		report("%s, a neighbour waits %v", when, p50)
	}
	if len(c.took) > 0 && slices.Max(c.took) > besideSlowest {
		report("%s, a neighbour waited %v once", when, slices.Max(c.took))
	}
}
