// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// request makes a request on a connection, and returns how long its answer was delayed.
func request(ctx context.Context, v *Conn, protoMajor int) time.Duration {
	r := httptest.NewRequestWithContext(context.WithValue(ctx, visiting{}, v), http.MethodGet, "/", nil)
	r.ProtoMajor = protoMajor
	start := time.Now()
	Restrain(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	return time.Since(start)
}

// TestManyTokenlessRequestsAreDelayed: an address may make 100 requests over HTTP/1 without a token
// at once, over any number of connections, and one more in 10 ms. A further one is answered later.
// Requests on established connections and those of other addresses are not delayed.
func TestManyTokenlessRequestsAreDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestLimit(t, 1024, true)
		known := c.accept("192.0.2.1")
		known.Admit()
		for n := range tokenlessBurst {
			if got := request(t.Context(), c.accept("192.0.2.1"), 1); got != 0 {
				t.Errorf("request %d is delayed by %v", n, got)
			}
		}
		all := c.accept("192.0.2.1")
		if got := request(t.Context(), all, 1); got != tokenlessDelay {
			t.Errorf("a request too many is delayed by %v, want %v", got, tokenlessDelay)
		}
		for range tokenlessDelay / tokenlessEvery {
			if got := request(t.Context(), all, 1); got != 0 {
				t.Errorf("a request is delayed by %v, though the allowance has grown", got)
			}
		}
		if got := request(t.Context(), all, 1); got != tokenlessDelay {
			t.Errorf("the allowance has grown too much: a request is delayed by %v", got)
		}
		for range tokenlessDelay / tokenlessEvery {
			request(t.Context(), all, 1)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		for what, got := range map[string]time.Duration{
			"another address":          request(t.Context(), c.accept("192.0.2.2"), 1),
			"a Unix socket":            request(t.Context(), c.accept(""), 1),
			"no limit":                 request(t.Context(), nil, 1),
			"established":              request(t.Context(), known, 1),
			"a client that has left":   request(gone, c.accept("192.0.2.1"), 1),
			"HTTP/2 is counted apart":  request(t.Context(), c.accept("192.0.2.1"), 2),
			"a connection that closed": request(t.Context(), closed(c.accept("192.0.2.1")), 1),
		} {
			if got != 0 {
				t.Errorf("%s: delayed by %v", what, got)
			}
		}
	})
}

// TestConnectingAgainRenewsNothing: an address that closes its connections may make no more
// requests without a token than one that keeps them.
func TestConnectingAgainRenewsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestLimit(t, 1024, true)
		for n := range tokenlessBurst + 1 {
			v, want := c.accept("192.0.2.1"), time.Duration(0)
			if n == tokenlessBurst {
				want = tokenlessDelay
			}
			if got := request(t.Context(), v, 1); got != want {
				t.Errorf("request %d is delayed by %v, want %v", n, got, want)
			}
			closed(v)
		}
		time.Sleep(tokenlessEvery * tokenlessBurst)
		synctest.Wait()
		if len(c.origins) != 0 {
			t.Errorf("%d addresses are on the books", len(c.origins))
		}
	})
}

func closed(v *Conn) *Conn {
	_ = v.Close()
	return v
}

// TestManyTokenlessStreamsEndTheirConnection: a connection over HTTP/2 may make 20 requests without
// a token at once, and 10 in each second. It is closed after a further one, unless it is
// established.
func TestManyTokenlessStreamsEndTheirConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newTestLimit(t, 1024, true)
		flood, health, known := c.accept("192.0.2.1"), c.accept("192.0.2.1"), c.accept("192.0.2.1")
		known.Admit()
		for range streamsBurst {
			request(t.Context(), flood, 2)
		}
		for range 100 {
			request(t.Context(), known, 2)
			time.Sleep(streamsEvery)
			request(t.Context(), health, 2)
			health.Probe()
			flood.Probe()
		}
		c.wantOpen(true, flood, health, known)
		for range streamsBurst + 1 {
			request(t.Context(), flood, 2)
		}
		c.wantOpen(true, health, known)
		c.wantOpen(false, flood)
	})
}
