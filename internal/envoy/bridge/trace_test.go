// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce"
	"github.com/penstock/penstock/internal/envoy/wire"
)

const sampledParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// recordSpans turns on tracing in a bridge's options, and returns the recorder of the spans.
func recordSpans(o *Options) *tracetest.SpanRecorder {
	spans := tracetest.NewSpanRecorder()
	o.Tracer = enforce.NewTracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	return spans
}

// tracedCall returns a call of a filter that sends the trace of its request.
func (h *testBridge) tracedCall(path, traceparent string) []byte {
	item := h.question(path, "192.0.2.1")
	reads := formOf(h.b.policy.Current()).traced
	item.Ask.Headers = make([]wire.Value, len(reads.Headers))
	item.Ask.Headers[slices.Index(reads.Headers, core.TraceHeader)] = wire.Value{Text: traceparent, Given: true}
	return callOf(h.b.policy.Current().ID+tracedSuffix, item)
}

// TestEveryBridgeReadsEveryFilter: any bridge answers any filter, whether or not the filter sends
// traces and the bridge records them, because several bridges may serve one Envoy.
func TestEveryBridgeReadsEveryFilter(t *testing.T) {
	for _, traces := range []bool{false, true} {
		var spans *tracetest.SpanRecorder
		h := open(t, shop, func(o *Options) {
			if traces {
				spans = recordSpans(o)
			}
		})
		if a := h.ask(h.question("/api/x", "192.0.2.1")); a[0].Status != wire.StatusOK || len(a[0].Results) != 1 || a[0].Results[0].Denied {
			t.Errorf("bridge traces %t, filter does not: %+v", traces, a)
		}
		a := h.answers(h.post(h.tracedCall("/api/x", sampledParent), wire.ContentType), 1)
		if a[0].Status != wire.StatusOK || len(a[0].Results) != 1 || a[0].Results[0].Denied {
			t.Errorf("bridge traces %t, and so does the filter: %+v", traces, a)
		}
		if !traces {
			continue
		}
		ended := spans.Ended()
		if len(ended) != 1 || ended[0].Parent().SpanID().String() != "b7ad6b7169203331" {
			t.Errorf("the spans are %+v", ended)
		}
	}
}

// TestPolicyOfABridgeThatTraces: a filter that has got the policy from a bridge that does not trace
// fetches it again from a bridge that traces.
func TestPolicyOfABridgeThatTraces(t *testing.T) {
	fetch := func(h *testBridge, known string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/v1/policy", nil)
		r.Header.Set("If-None-Match", known)
		w := httptest.NewRecorder()
		h.b.Handler().ServeHTTP(w, r)
		return w
	}
	plain, traced := open(t, shop, nil), open(t, shop, func(o *Options) { recordSpans(o) })
	before := fetch(plain, "").Header().Get("Etag")
	w := fetch(traced, before)
	p, version, err := compact.ReadPolicy(w.Body.Bytes())
	if err != nil || w.Code != http.StatusOK || !p.Traced || version != plain.b.policy.Current().ID+tracedSuffix {
		t.Fatalf("status %d, traced %t, version %q, %v", w.Code, p.Traced, version, err)
	}
	if inputs := core.InputsOf(&p); !slices.Equal(inputs.Headers, formOf(traced.b.policy.Current()).traced.Headers) {
		t.Errorf("the filter sends %q", inputs.Headers)
	}
	if w := fetch(traced, w.Header().Get("Etag")); w.Code != http.StatusNotModified {
		t.Errorf("status %d for the same policy", w.Code)
	}
}

// TestTraceOfAJSONCall: a caller of the JSON API sends its span as the header of the call.
func TestTraceOfAJSONCall(t *testing.T) {
	var spans *tracetest.SpanRecorder
	h := open(t, shop, func(o *Options) { spans = recordSpans(o) })
	for _, parent := range []string{"", sampledParent, "hostile"} {
		r := httptest.NewRequest(http.MethodPost, "/v1/check", strings.NewReader(`{"path":"/api/x","ip":"192.0.2.7"}`))
		r.Header.Set(core.TraceHeader, parent)
		w := httptest.NewRecorder()
		if h.b.Handler().ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
	}
	if n := len(spans.Ended()); n != 1 {
		t.Errorf("%d spans", n)
	}
}

// TestTraceOfAFailure: the span of a question that the store did not answer is an error.
func TestTraceOfAFailure(t *testing.T) {
	var spans *tracetest.SpanRecorder
	h := open(t, shop, func(o *Options) { spans = recordSpans(o) })
	h.store.fails = counter.ErrUnavailable
	h.post(h.tracedCall("/api/x", sampledParent), wire.ContentType)
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Status().Code.String() != "Error" {
		t.Errorf("the spans are %+v", ended)
	}
}
