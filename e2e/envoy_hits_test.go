// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// hitsRoutes make Envoy send descriptors with hits of their own: on /request with the request, on
// /report at the end of the stream, and on /flight with the request and, given back, at the end of
// the stream. /look asks how much is left of the limit that all clients share, and charges nothing.
var hitsRoutes = hitsRoute("/request", sharedEntry+", hits_addend: {number: 2}}, "+ownEntry+", hits_addend: {number: 2}}") +
	hitsRoute("/report", ownEntry+", hits_addend: {number: 0}}, "+
		sharedEntry+", hits_addend: {number: 4}, apply_on_stream_done: true}, "+ownEntry+", hits_addend: {number: 4}, apply_on_stream_done: true}") +
	hitsRoute("/flight", ownEntry+"}, "+ownEntry+", hits_addend: {number: 1, is_negative_hits: true}, apply_on_stream_done: true}") +
	hitsRoute("/look", sharedEntry+", hits_addend: {number: 0}}")

// These are the beginnings of entries of rate_limits.
const (
	sharedEntry = "{actions: [{generic_key: {descriptor_value: all}}]"
	ownEntry    = "{actions: [{request_headers: {header_name: x-client, descriptor_key: client}}]"
)

func hitsRoute(path, limits string) string {
	return `{match: {prefix: ` + path + `}, route: {cluster: upstream, timeout: 60s}, typed_per_filter_config: {envoy.filters.http.ratelimit: {
    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute, rate_limits: [` + limits + `]}}},`
}

// hitsPolicy has a limit that all clients share and one for each client.
const hitsPolicy = `name: shop
rules:
  - {name: all, match: {attr: {generic_key: []}}, per: ["attr:generic_key"], limit: 100/31d fixed_window}
  - {name: own, match: {attr: {client: []}}, per: ["attr:client"], limit: 10/31d fixed_window}
`

// startHits starts a site with the filter of the guide. The upstream holds requests for paths that
// end in "hold" until the client leaves. The returned function returns the number of calls at the
// end of denied streams.
func startHits(t *testing.T) (s *site, refused func() int) {
	hold := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "hold") {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // the client may have left
			<-r.Context().Done()
		}
	})
	filter := strings.NewReplacer("penstock-rls", "RPC_CLUSTER", `"timeout":"1s"`, `"timeout":"20s"`).Replace(guideBlock(t, "http_filters:"))
	s = &site{filter: filter, rpcCluster: guideRateLimitCluster(t), routes: hitsRoutes}
	useEnvoy(t, hold, s)
	b := newBridge(t, hitsPolicy, "--redis", redistest.Start(t).URL(), "--redis-timeout", "5s", "--rls-listen", "unix:"+s.grpc)
	b.listen = s.bridge
	b.run(t)
	eventually.Until(t, patience, "Envoy has reached the service", func() bool { return s.sharedLeft(t) == 100 })
	t.Cleanup(func() {
		if strings.Contains(b.log.String(), "does not say whether the stream has ended") {
			t.Errorf("Envoy does not mark its calls: %s", b.log)
		}
	})
	return s, func() int { return int(sumSeries(t, b.metrics(t), `penstock_rls_requests_total{result="refused"} `)) }
}

// hold sends a request that the upstream holds until ctx ends, and returns the status.
func (s *site) hold(ctx context.Context, t *testing.T, path, client string) int {
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.address+path+"/hold", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Client", client)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response.StatusCode
}

// sharedLeft returns how much is left of the limit that all clients share, or -1.
func (s *site) sharedLeft(t *testing.T) int {
	var left int
	if _, err := fmt.Sscanf(s.get(t, "/look").header.Get("RateLimit"), `"all";r=%d;`, &left); err != nil {
		return -1
	}
	return left
}

// send sends requests of a client, and returns how many are admitted.
func (s *site) send(t *testing.T, path, client string, requests int) (admitted int) {
	for range requests {
		switch a := s.get(t, path, "X-Client", client); a.status {
		case http.StatusOK:
			admitted++
		case http.StatusTooManyRequests:
		default:
			t.Errorf("%s: status %d, %v", path, a.status, a.header)
		}
	}
	return admitted
}

// TestEnvoyHitsOfRequests: a client over its own limit does not use up the limit that all clients
// share, even if the descriptors of its requests have hits of their own.
func TestEnvoyHitsOfRequests(t *testing.T) {
	t.Parallel()
	s, _ := startHits(t)
	for _, c := range []struct {
		client          string
		requests, wants int
	}{{"greedy", 60, 5}, {"other", 5, 5}} {
		if n := s.send(t, "/request", c.client, c.requests); n != c.wants {
			t.Errorf("%s: %d of %d admitted, want %d", c.client, n, c.requests, c.wants)
		}
	}
	if n := s.sharedLeft(t); n != 80 {
		t.Errorf("%d of 100 left of the shared limit, want 80", n)
	}
}

// TestEnvoyReportsAtTheEnd: what a stream has used is charged at its end, even beyond the client's
// limit and if the client resets the stream. A denied request has used nothing.
func TestEnvoyReportsAtTheEnd(t *testing.T) {
	t.Parallel()
	s, refused := startHits(t)
	for used := 4; used <= 8; used += 4 {
		if n := s.send(t, "/report", "a", 1); n != 1 {
			t.Errorf("denied after %d units", used-4)
		}
		eventually.Until(t, patience, "the report is charged", func() bool { return s.sharedLeft(t) == 100-used })
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	if status := s.hold(ctx, t, "/report", "a"); status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	leave()
	eventually.Until(t, patience, "the report of the reset stream is charged, beyond the client's limit", func() bool { return s.sharedLeft(t) == 88 })
	if n := s.send(t, "/report", "a", 7); n != 0 {
		t.Errorf("%d of 7 admitted beyond the limit", n)
	}
	eventually.Until(t, patience, "Envoy has called at the end of the denied streams", func() bool { return refused() == 7 })
	if n := s.sharedLeft(t); n != 88 {
		t.Errorf("%d of 100 left of the shared limit, want 88", n)
	}
}

// TestEnvoyDeniedStreamsGiveNothingBack: under a limit of requests in progress, each stream takes a
// unit and gives it back at its end. Denied streams have taken none, so they give none back.
func TestEnvoyDeniedStreamsGiveNothingBack(t *testing.T) {
	t.Parallel()
	s, refused := startHits(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for i := range 10 {
		if status := s.hold(ctx, t, "/flight", "a"); status != http.StatusOK {
			t.Fatalf("request %d: %d", i, status)
		}
	}
	for i := range 6 {
		if status := s.hold(ctx, t, "/flight", "a"); status != http.StatusTooManyRequests {
			t.Fatalf("request %d beyond the limit: %d", i, status)
		}
		eventually.Until(t, patience, "Envoy has called at the end of the denied stream", func() bool { return refused() == i+1 })
	}
	leave()
	eventually.Until(t, patience, "the streams have given back their units", func() bool { return s.send(t, "/flight", "a", 1) == 1 })
}
