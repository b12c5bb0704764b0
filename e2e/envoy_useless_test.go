// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// late holds counters. If a busy machine makes an answer miss its deadline, one of them grows.
var late = []string{"bridge_unanswered", "bridge_timeout", "bridge_unreachable"}

// useless holds answers that decide nothing. For each answer, at least one of the counters must
// grow.
var useless = []struct {
	name     string
	counters []string
	answer   http.HandlerFunc
}{
	{"garbage", []string{"bridge_unanswered"}, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("\xff\x00<html>")) }},
	{"an error", []string{"bridge_unanswered"}, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "a bug", http.StatusInternalServerError) }},
	{"unavailable", []string{"bridge_unreachable"}, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) }},
	{"nothing", []string{"bridge_unanswered"}, func(http.ResponseWriter, *http.Request) {}},
	{"no content", []string{"bridge_unanswered"}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
	{"another place", []string{"bridge_unanswered"}, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }},
	{"a megabyte", late, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }},
	{"a megabyte of errors", late, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = w.Write(bytes.Repeat([]byte("x"), 1<<20))
	}},
	{"hanging up", []string{"bridge_unreachable"}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	{"hanging up half way", []string{"bridge_unreachable", "bridge_timeout"}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("x"))
		panic(http.ErrAbortHandler)
	}},
	{"silence", []string{"bridge_timeout", "bridge_unreachable"}, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
	{"a trickle", []string{"bridge_timeout", "bridge_unreachable"}, func(w http.ResponseWriter, r *http.Request) {
		for tick := time.Tick(20 * time.Millisecond); ; {
			_, _ = w.Write([]byte("x"))
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-tick:
			}
		}
	}},
}

// fakeBridge forwards requests to a genuine bridge, unless a test replaces the answers.
type fakeBridge struct {
	answer, policy atomic.Pointer[http.HandlerFunc] // the handler; nil forwards to the genuine bridge
	true           http.Handler
}

func (f *fakeBridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	instead := &f.answer
	if r.URL.Path == "/v1/policy" {
		instead = &f.policy
	}
	if handler := instead.Load(); handler != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		(*handler)(w, r)
		return
	}
	f.true.ServeHTTP(w, r)
}

// startFakeBridge runs a fake bridge in front of a genuine one. The filter does not remember
// denials.
func (s *site) startFakeBridge(t *testing.T, policy string) *fakeBridge {
	t.Helper()
	b := newBridge(t, policy, "--redis", redistest.Start(t).URL(), "--redis-timeout", "5s", "--remember-denials=false")
	b.run(t)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "bridge"})
	proxy.Transport = b.transport()
	f := &fakeBridge{true: proxy}
	s.envoy.awaitPolicyLoad(t, func() { serveAt(t, "unix", s.bridge, f) })
	return f
}

// uselessPolicy has a limit that is so high that the requests which on_error decides do not reach
// it.
const uselessPolicy = `name: shop
on_error: ON_ERROR
rules: [{name: all, limit: 100000/31d}, {name: few, match: {path: /few}, limit: 100/31d}]
`

// survivesUselessAnswers tests that a useless answer of the bridge is treated like a missing
// answer.
func (s *site) survivesUselessAnswers(t *testing.T, word string) {
	s.limited = "/few"
	f := s.startFakeBridge(t, renamedPolicy(strings.ReplaceAll(uselessPolicy, "ON_ERROR", word)))
	for _, c := range useless {
		t.Run(c.name, func(t *testing.T) {
			s.awaitDecided(t)
			count := func() (reasons int) {
				for _, counter := range c.counters {
					reasons += s.envoy.counter("penstock." + counter)
				}
				return reasons
			}
			before := count()
			f.answer.Store(&c.answer)
			s.awaitForgotten(t)
			var got tally
			startLoadOn(s.address, 16, &got, times(200)).Wait()
			s.checkDegraded(t, s.get(t, "/"), word)
			f.answer.Store(nil)
			slowest := time.Duration(got.slowest.Load())
			if t.Logf("slowest %v", slowest); slowest > answerWithin {
				t.Errorf("an answer took %v", slowest)
			}
			if decided := map[string]int64{"allow": got.admitted.Load(), "deny": got.serverErrors.Load()}[word]; decided != 200 {
				t.Errorf("%d of 200 requests were decided by on_error %s; %d admitted, %d refused, %d of 5xx, %d broken", decided, word,
					got.admitted.Load(), got.refused.Load(), got.serverErrors.Load(), got.broken.Load())
			}
			if count() == before {
				t.Errorf("none of %v has grown; the counters are\n%s", c.counters, s.envoy.read("/stats?filter=wasmcustom"))
			}
		})
	}
	s.awaitLimit(t)
	s.rejectsUselessPolicies(t, f)
}

// rejectsUselessPolicies tests that if the bridge sends something other than a policy, the previous
// policy stays in force.
func (s *site) rejectsUselessPolicies(t *testing.T, f *fakeBridge) {
	t.Helper()
	for tag, body := range map[string][]byte{`"garbage"`: []byte("\xff\x00<html>"), `"empty"`: nil, `"zeros"`: make([]byte, 1<<20)} {
		refused := s.envoy.counter("penstock.policy_refused")
		tells := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", tag)
			_, _ = w.Write(body)
		})
		f.policy.Store(&tells)
		eventually.Until(t, patience, "the policy is refused: "+tag, func() bool {
			return s.envoy.counter("penstock.policy_refused") >= refused+3
		})
		s.awaitLimit(t) // by the previous policy
	}
}
