// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

const countOfRedirects = "filter_state.num_internal_redirects"

// TestAnInternalRedirect: a redirected request is charged once, and its response gets the headers
// and the settlement of the first stream.
func TestAnInternalRedirect(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, costsPolicy(t, func(r *corepolicy.Rule) { r.RefundOn = []corepolicy.Statuses{{From: 500, To: 599}} }))
	first := admitted(t, e, f, 1, reservedAnswer(1), get("/api/x", "x-request-id", "a"))
	first.Done()
	for hop := uint32(1); hop <= 2; hop++ {
		e.properties[countOfRedirects] = "1"
		s := f.NewStream(1 + hop)
		if s.RequestHeaders(get("/api/landed", "x-request-id", "a")) != Continue || len(e.calls)+len(e.resumed) != 1 {
			t.Fatalf("hop %d: asked about again", hop)
		}
		if hop == 1 {
			s.Done()
			continue
		}
		if got := s.ResponseHeaders(okHeaders("503"), true); fieldOf(got, "x-ratelimit-remaining") != "90" {
			t.Errorf("told %v", got)
		}
	}
	if got := receivedSettlement(t, e, f); got == nil || got.Status != 503 || got.Receipt != "sealed" {
		t.Errorf("settled %+v", got)
	}
	equalCounts(t, e, map[string]int{"allowed": 1, "redirected": 2, "policy_loaded": 1})
}

// TestSimilarRequestsAreNoRedirects: similar requests that are not redirects are decided as usual.
func TestSimilarRequestsAreNoRedirects(t *testing.T) {
	for name, c := range map[string]struct {
		between func(e *fakeEnvoy, f *Filter, first *Stream)
		headers [][2]string
	}{
		"no count in the filter state": {func(_ *fakeEnvoy, _ *Filter, first *Stream) { first.Done() },
			get("/api/x", "x-request-id", "a", "x-envoy-original-url", "http://example.com/api/x")},
		"another request between": {func(e *fakeEnvoy, f *Filter, first *Stream) {
			first.Done()
			f.NewStream(9).RequestHeaders(get("/other", "x-request-id", "b"))
			e.properties[countOfRedirects] = "1"
		}, get("/api/x", "x-request-id", "a")},
		"the stream before was another request's": {func(e *fakeEnvoy, _ *Filter, first *Stream) {
			first.Done()
			e.properties[countOfRedirects] = "1"
		}, get("/api/x", "x-request-id", "b")},
		"the stream before came over another connection": {func(e *fakeEnvoy, _ *Filter, first *Stream) {
			first.Done()
			e.properties[countOfRedirects] = "1"
			e.properties["source.address"] = "192.0.2.8:4711"
		}, get("/api/x", "x-request-id", "a")},
		"the stream before had a response": {func(e *fakeEnvoy, _ *Filter, first *Stream) {
			first.ResponseHeaders(okHeaders("200"), true)
			first.Done()
			e.properties[countOfRedirects] = "1"
		}, get("/api/x", "x-request-id", "a")},
		"the stream before goes on": {func(e *fakeEnvoy, _ *Filter, _ *Stream) { e.properties[countOfRedirects] = "1" },
			get("/api/x", "x-request-id", "a")},
	} {
		e := newEnvoy(t)
		f := withPolicy(t, e, shopPolicy(t, "10/1m"))
		first := admitted(t, e, f, 1, admittedWith(9), get("/api/x", "x-request-id", "a"))
		c.between(e, f, first)
		s := f.NewStream(2)
		if s.RequestHeaders(c.headers) != Pause || e.counts[CounterRedirected] != 0 {
			t.Errorf("%s: not asked about", name)
		}
	}
}

// TestADenialIsNotRedirected: the request after a denied or waiting request is not mistaken for
// its redirect.
func TestADenialIsNotRedirected(t *testing.T) {
	e := newEnvoy(t)
	f := withPolicy(t, e, shopPolicy(t, "10/1m"))
	s := f.NewStream(1)
	s.RequestHeaders(get("/api/x", "x-request-id", "a"))
	f.Flush()
	c, _, _ := e.check()
	c.answer(replyWith(denialOver()))
	s.Done()
	e.now += 2 * counter.Second // this makes the filter forget the denial
	e.properties[countOfRedirects] = "1"
	if f.NewStream(2).RequestHeaders(get("/api/x", "x-request-id", "a")) != Pause {
		t.Error("it goes on")
	}
	f.Flush()
	c, _, items := e.check()
	if c.answer(replyWith(wire.Answer{}, admittedWith(1))); len(items) != 1 || slices.Contains(e.resumed, 1) {
		t.Errorf("%v, %v", items, e.resumed)
	}
}

// TestUnchangedResponsesEndTheirRequest: a response that the filter does not change still ends its
// request. So the filter need not look up in Envoy's filter state whether the next request on the
// connection is a redirect.
func TestUnchangedResponsesEndTheirRequest(t *testing.T) {
	e := newEnvoy(t)
	p := shopPolicy(t, "10/1m")
	p.Headers = corepolicy.HeadersNone
	f := withPolicy(t, e, p)
	s := admitted(t, e, f, 1, admittedWith(1), get("/api/x"))
	if s.Responds() {
		t.Fatal("it has something to say")
	}
	s.Done()
	e.properties[countOfRedirects] = "1"
	if next := f.NewStream(2); next.before != nil || next.RequestHeaders(get("/api/x")) != Pause || e.counts[CounterRedirected] != 0 {
		t.Errorf("the next request goes on with it: %v", e.count())
	}
}
