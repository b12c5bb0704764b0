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

	"github.com/penstock/penstock/internal/test/eventually"
)

// otherClientPause is the pause between two requests of the other client.
const otherClientPause = 20 * time.Millisecond

// otherUncountedMax bounds the other client's requests that may be allowed without being counted:
// to this number, or to this percentage if that is more. There may be some, because a busy machine
// misses deadlines of 50 ms. If an attack opens a circuit breaker, most requests are not counted,
// and the test fails.
const otherUncountedMax = 4

// otherClient is a client that stays far below its limit. It sends requests at a steady pace while
// the attacker attacks.
type otherClient struct {
	t      testing.TB
	front  *front
	client *http.Client
	end    chan struct{}
	group  sync.WaitGroup
	seen   experience
}

// experience records the answers that the other client gets.
type experience struct {
	took                      []time.Duration
	denied, uncounted, failed int
	first                     string // a description of the first answer that was not a counted 200
}

// newOtherClient waits until the front decides requests, and returns a client with the given
// address. A previous attack might have opened circuit breakers. Each Envoy worker has one, so
// newOtherClient uses several connections to check this. The returned client is already connected,
// so that only requests are measured.
func newOtherClient(t testing.TB, f *front, from string) *otherClient {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return dialer.DialContext(ctx, network, address)
	}}
	b := &otherClient{t: t, front: f, end: make(chan struct{}), client: &http.Client{Timeout: 30 * time.Second, Transport: transport}}
	eventually.Until(t, patience, f.name+" decides, whatever was before", func() bool {
		const connections = 16
		c := b.askTimes(connections)
		return c.denied+c.uncounted+c.failed == 0
	})
	transport = transport.Clone()
	transport.DisableKeepAlives = false
	b.client.Transport = transport
	t.Cleanup(b.client.CloseIdleConnections)
	b.askTimes(1)
	return b
}

// otherClient.start sends requests until stop is called.
func (b *otherClient) start() {
	b.group.Go(func() {
		pace := time.NewTicker(otherClientPause)
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

// otherClient.stop ends the requests that the method named start began, and returns what their
// answers were like.
func (b *otherClient) stop() experience {
	close(b.end)
	b.group.Wait()
	return b.seen
}

// askTimes sends n requests, one after the other.
func (b *otherClient) askTimes(n int) (c experience) {
	for range n {
		b.ask(&c)
	}
	return c
}

func (b *otherClient) ask(c *experience) {
	begun := time.Now()
	status, counted, err := b.sendOnce()
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

// sendOnce sends one request. The result named counted reports whether the answer has limit
// headers. They show that the request was counted: without a counter, on_error decides, and the
// answer has none.
func (b *otherClient) sendOnce() (status int, counted bool, err error) {
	request, err := http.NewRequest(http.MethodGet, "http://"+b.front.address+otherClientPath, nil)
	if err != nil {
		return 0, false, err
	}
	request.Header.Set(otherClientHeader, "1")
	response, err := b.client.Do(request)
	if err != nil {
		return 0, false, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, response.Header.Get("X-RateLimit-Limit") != "", err
}

func (c experience) median() time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(c.took))
	return sorted[len(sorted)/2]
}

func (c experience) String() string {
	if len(c.took) == 0 {
		return "nothing asked"
	}
	return fmt.Sprintf("%v / %v (%d; %d, %d, %d)", c.median().Round(time.Millisecond/10), slices.Max(c.took).Round(time.Millisecond),
		len(c.took), c.denied, c.uncounted, c.failed)
}

// experience.assert reports where the other client was not served as promised. The argument named
// soon is set if the bound of the median wait applies.
func (c experience) assert(report func(format string, args ...any), when string, soon bool) {
	if c.denied+c.failed > 0 || c.uncounted > max(otherUncountedMax, len(c.took)*otherUncountedMax/100) {
		report("%s, of %d requests of another client %d were denied, %d let through uncounted and %d not served; first: %s", when,
			len(c.took), c.denied, c.uncounted, c.failed, c.first)
	}
	if p50 := c.median(); soon && p50 > medianWaitMax {
		report("%s, another client waits %v", when, p50)
	}
	if len(c.took) > 0 && slices.Max(c.took) > waitMax {
		report("%s, another client waited %v once", when, slices.Max(c.took))
	}
}
