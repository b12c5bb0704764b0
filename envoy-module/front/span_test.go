// SPDX-License-Identifier: Apache-2.0

package front

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// spans is a tracer that counts its calls.
type spans struct {
	begun, ended int
	attributes   map[string]string
}

func (s *spans) Begin() { s.begun++ }

func (s *spans) End(attributes [][2]string) {
	s.ended++
	s.attributes = map[string]string{}
	for _, a := range attributes {
		s.attributes[a[0]] = a[1]
	}
}

// traceRequest decides a request that Envoy traces, and returns its span.
func traceRequest(f *Front, h Host, path string) *spans {
	s, b, span := f.NewStream(), newBell(), new(spans)
	defer s.Release()
	s.Headers, s.Tracer = append(s.Headers, request(path)...), span
	if s.Decide(client, h, b) == Wait {
		<-b.rung
		s.Woken()
	}
	s.EndSpan()
	return span
}

// TestSpans tests that each check has one span, which contains the decision, whether or not the
// request waits for the store. A request that is not checked has no span.
func TestSpans(t *testing.T) {
	redis := redistest.Start(t)
	const policy = "name: shop\nstatus_path: /limits\nrules: [{name: api, match: {path: /api/*}, limit: 1/31d}]\n"
	over := "store: {type: redis, url: \"" + redis.URL() + "\", timeout: 10s}\n"
	for where, f := range map[string]*Front{"memory": openFront(t, policy), "Redis": openFront(t, policy+over)} {
		for _, want := range []map[string]string{
			{"penstock.decision": "allowed", "penstock.source": "store", "penstock.rule": "api", "penstock.endpoint": "/api/*", "penstock.policy": "shop", "error.type": ""},
			{"penstock.decision": "denied", "penstock.source": "store", "penstock.rule": "api"},
		} {
			checkSpan(t, where, traceRequest(f, emptyHost{}, "/api/x"), want)
		}
		for _, path := range []string{"/limits", "no path"} {
			if span := traceRequest(f, emptyHost{}, path); span.begun+span.ended != 0 {
				t.Errorf("%s, %s: the span begins %d times and ends %d times", where, path, span.begun, span.ended)
			}
		}
	}
}

// TestSpansOfFailures tests the spans of requests that on_error decides.
func TestSpansOfFailures(t *testing.T) {
	redis := redistest.Start(t)
	f := openFront(t, "name: shop\non_error: deny\nidentify: [{attr: request.protocol}, {ip: {}}]\nrules: [{name: all, limit: 10/31d}]\nstore: {type: redis, url: \""+
		redis.URL()+"\", timeout: 10ms}\n")
	checkSpan(t, "a panic", traceRequest(f, panickingHost{}, "/"), map[string]string{"error.type": "panic", "penstock.source": "on_error"})
	redis.Kill()
	eventually.Until(t, 10*time.Second, "the store does not answer", func() bool {
		return traceRequest(f, emptyHost{}, "/").attributes["penstock.source"] != "store"
	})
	span := traceRequest(f, emptyHost{}, "/")
	if span.attributes["error.type"] == "" {
		t.Errorf("without Redis the span has %v", span.attributes)
	}
	checkSpan(t, "without Redis", span, map[string]string{"penstock.source": "on_error", "penstock.policy": "shop"})
}

// checkSpan tests that a span began once and ended once, and that it has the given attributes.
func checkSpan(t *testing.T, where string, span *spans, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if span.attributes[name] != value {
			t.Errorf("%s: %s is %q, want %q", where, name, span.attributes[name], value)
		}
	}
	if span.begun != 1 || span.ended != 1 {
		t.Errorf("%s: the span begins %d times and ends %d times", where, span.begun, span.ended)
	}
}
