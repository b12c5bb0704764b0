// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/redistest"
)

// meteredCaddyfile configures a Caddy that charges the costs that responses report. It trusts
// forwarded addresses, so that each case of a test has its own counters.
const meteredCaddyfile = `{
	admin ADMIN
	grace_period {$GRACE:10s}
	servers {
		trusted_proxies static 127.0.0.1/32
		trusted_proxies_strict
	}
	penstock {
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		on_error deny
	}
}
:SITE {
	penstock {
		name meter
		rule tokens {
			match path /tokens/**
			limit 1000000/31d fixed_window
			cost_after json usage.total_tokens {
				estimate 100
				default 700
				max 50000
			}
		}
		rule kept {
			match path /kept/**
			limit 1000000/31d fixed_window
			cost_after json usage.total_tokens {
				estimate 10
				max 50000
				unread 30
			}
		}
		rule priced {
			match path /priced/**
			limit 1000000/31d fixed_window
			cost_after header X-Cost {
				estimate 100
				default 700
				max 50000
			}
		}
	}
	encode /tokens/encoded/* gzip zstd {
		minimum_length 1
		match header Content-Type *
	}
	reverse_proxy {env.UPSTREAM}
}
`

// meteredSite is a Caddy with meteredCaddyfile, and its upstream and Redis.
type meteredSite struct {
	*process
	redis    *redistest.Server
	upstream *httptest.Server
}

func startMetered(t *testing.T, h http.Handler, env ...string) *meteredSite {
	m := &meteredSite{redis: redistest.Start(t), upstream: httptest.NewServer(h)}
	t.Cleanup(m.upstream.Close)
	m.process = m.startAnother(t, env...)
	return m
}

// startAnother starts another Caddy with the same Redis and upstream.
func (m *meteredSite) startAnother(t *testing.T, env ...string) *process {
	return startCaddy(t, meteredCaddyfile, append(env, "PENSTOCK_REDIS="+m.redis.URL(), "UPSTREAM="+m.upstream.Listener.Addr().String())...)
}

// countCharged returns the number of units that a rule has charged to the client with the given
// address.
func (m *meteredSite) countCharged(t *testing.T, rule, address string) int64 {
	t.Helper()
	return sum(readUsed(t, m.redis, "rl1:meter:"+rule+":{ip:"+address+"}:2678400s:fw"))
}

// asIs is an HTTP client that does not decompress bodies.
var asIs = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16}}

// meteredSite.open sends a request and returns the response as soon as its header arrives.
func (m *meteredSite) open(ctx context.Context, p *process, method, path, address string, fields ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.address+path, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("X-Forwarded-For", address)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	return asIs.Do(r)
}

// stepwiseUpstream is an upstream that sends an event only after the test has confirmed that the
// previous one arrived.
type stepwiseUpstream struct {
	events  []string
	kind    string // content type
	gzipped bool
	arrived chan struct{}
}

func (s *stepwiseUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", s.kind)
	var out io.Writer = w
	flush := func() error { return nil }
	if s.gzipped {
		w.Header().Set("Content-Encoding", "gzip")
		zip := gzip.NewWriter(w)
		defer zip.Close()
		out, flush = zip, zip.Flush
	}
	for _, event := range s.events {
		_, _ = io.WriteString(out, event)
		_ = flush()
		_ = http.NewResponseController(w).Flush()
		select {
		case <-s.arrived:
		case <-r.Context().Done():
			return
		}
	}
}

// longStream returns n events with other numbers, an event with the cost, and the end of the
// stream.
func longStream(n int, cost string) (events []string) {
	for i := range n {
		events = append(events, fmt.Sprintf("event: delta\ndata: {\"choice\":%d,\"usage\":{\"total_tokens\":%d}}\n\n", i, i+1))
	}
	return append(events, "data: {\"usage\":{\"total_tokens\":"+cost+"}}\n\n", "data: [DONE]\n\n")
}

// readsInStep reads the events one by one, and confirms each of them to the upstream. It fails the
// test if an event does not arrive.
func (s *stepwiseUpstream) readsInStep(t *testing.T, body io.Reader) {
	t.Helper()
	if s.gzipped {
		zip, err := gzip.NewReader(body)
		if err != nil {
			t.Error(err)
			return
		}
		body = zip
	}
	for i, event := range s.events {
		arrived := make(chan string, 1)
		go func() {
			got := make([]byte, len(event))
			n, err := io.ReadFull(body, got)
			if err != nil {
				got = fmt.Append(got[:n], err)
			}
			arrived <- string(got)
		}()
		select {
		case got := <-arrived:
			if got != event {
				t.Errorf("event %d: %q, want %q", i, got, event)
				return
			}
		case <-time.After(patience):
			t.Errorf("event %d was held back", i)
			return
		}
		s.arrived <- struct{}{}
	}
	if rest, err := io.ReadAll(body); err != nil || len(rest) > 0 {
		t.Errorf("behind the events: %q, %v", rest, err)
	}
}

// usageJSON returns a document of about n bytes with the cost at its end.
func usageJSON(n int, cost string) string {
	return `{"text":"` + strings.Repeat("water ", n/6) + `","usage":{"total_tokens":` + cost + `}}`
}

func compress(text string) string {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	_, _ = io.WriteString(zip, text)
	_ = zip.Close()
	return out.String()
}
