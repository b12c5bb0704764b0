// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// This is the parent of the spans in these tests.
const (
	testTrace   = "0af7651916cd43dd8448eb211c80319c"
	testParent  = "b7ad6b7169203331"
	testSampled = "00-" + testTrace + "-" + testParent + "-01"
)

// recorder returns a tracer and the recorder of its spans.
func recorder() (*Tracer, *tracetest.SpanRecorder) {
	spans := tracetest.NewSpanRecorder()
	return NewTracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))), spans
}

// TestSpanSaysWhatWasDecided: a span has the same data as the metrics. The client is named only to
// the extent that the policy's events name it.
func TestSpanSaysWhatWasDecided(t *testing.T) {
	const rules = "rules: [{name: api, match: {path: [/api/v1/*, /api/*]}, limit: 5/1m}]"
	const denied = "penstock.decision=denied penstock.endpoint=/api/* penstock.policy=shop penstock.rule=api penstock.source=store"
	const allowed = "penstock.decision=allowed penstock.endpoint=/api/* penstock.policy=shop penstock.rule=api penstock.source=store"
	const client = "client.address=192.0.2.7 penstock.client=ip:192.0.2.7 "
	for name, c := range map[string]struct {
		policy string
		denies bool
		want   string
	}{
		"admitted":          {"{name: shop, " + rules + "}", false, allowed},
		"denied":            {"{name: shop, " + rules + "}", true, denied},
		"events of denials": {"{name: shop, events: {}, " + rules + "}", true, client + denied},
		"admitted there":    {"{name: shop, events: {}, " + rules + "}", false, allowed},
		"events of all":     {"{name: shop, events: {admitted: 1}, " + rules + "}", false, client + allowed},
		"part of the address": {"{name: shop, events: {ip: prefix}, " + rules + "}", true,
			"client.address=192.0.2.0/24 penstock.client=ip:192.0.2.0/24 " + denied},
		"no address": {"{name: shop, events: {ip: none}, " + rules + "}", true, "penstock.client=ip " + denied},
		"blocked": {"{name: shop, block: {ip: 192.0.2.7}, " + rules + "}", false,
			"penstock.decision=blocked penstock.policy=shop penstock.rule=block[0] penstock.source=policy"},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, spans := recorder()
			r := newReportTest(t, c.policy)
			span := tracer.Within(testSampled)
			d := r.ask("/api/x", c.denies)
			span.End(&r.plan, &d, nil, r.versions...)
			ended := spans.Ended()
			if len(ended) != 1 {
				t.Fatalf("%d spans", len(ended))
			}
			got := attributesOf(ended[0])
			if version := got["penstock.version"]; version != r.versions[0].ID {
				t.Errorf("the version is %q", version)
			}
			delete(got, "penstock.version")
			if text := joinSorted(got); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
			if s := ended[0]; s.Name() != "penstock.check" || s.Parent().SpanID().String() != testParent || s.SpanContext().TraceID().String() != testTrace ||
				s.SpanKind() != trace.SpanKindServer || s.Status().Code != codes.Unset || s.EndTime().Before(s.StartTime()) {
				t.Errorf("the span is %+v", s)
			}
		})
	}
}

func attributesOf(s sdktrace.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, one := range s.Attributes() {
		all[string(one.Key)] = one.Value.AsString()
	}
	return all
}

func joinSorted(all map[string]string) string {
	var list []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, fmt.Sprintf("%s=%s", key, all[key]))
	}
	return strings.Join(list, " ")
}

// TestSpanOfAFailure: the span of a check that the store did not answer has an error, and states
// that on_error decided.
func TestSpanOfAFailure(t *testing.T) {
	tracer, spans := recorder()
	r := newReportTest(t, "{name: shop, on_error: deny, rules: [{name: all, limit: 5/1m}]}")
	r.ask("/", false)
	d := r.plan.Fail(counter.ErrUnavailable)
	span := tracer.Within(testSampled)
	span.End(&r.plan, &d, counter.ErrUnavailable, r.versions...)
	s := spans.Ended()[0]
	got := attributesOf(s)
	if s.Status().Code != codes.Error || got["error.type"] != "other" || got["penstock.source"] != "on_error" || got["penstock.decision"] != "degraded_denied" {
		t.Errorf("the status is %v, the attributes are %v", s.Status(), got)
	}
}

// TestHostileParents: a text that is not the traceparent of a sampled trace makes no span.
func TestHostileParents(t *testing.T) {
	tracer, spans := recorder()
	r := newReportTest(t, "{name: shop, rules: [{name: all, limit: 5/1m}]}")
	d := r.ask("/", false)
	for _, traceparent := range []string{"", "x", "00-" + testTrace + "-" + testParent + "-00", "00-" + strings.Repeat("0", 32) + "-" + testParent + "-01",
		"00-" + testTrace + "-" + strings.Repeat("0", 16) + "-01", testSampled + "-more", strings.Repeat("0", 1<<20), "00-" + testTrace + "--01", "ff-" + testTrace + "-" + testParent + "-01"} {
		span := tracer.Within(traceparent)
		span.End(&r.plan, &d, nil, r.versions...)
		if n := len(spans.Ended()); n != 0 {
			t.Fatalf("%.80q made a span", traceparent)
		}
	}
}

// TestClientsOfAnyBytes: a client whose name is not text does not prevent the spans of other
// clients from being sent. Spans are sent as protocol buffers, whose texts must be UTF-8.
func TestClientsOfAnyBytes(t *testing.T) {
	tracer, spans := recorder()
	r := newReportTest(t, "{name: shop, events: {}, rules: [{name: all, limit: 5/1m}]}")
	d := r.ask("/", true)
	d.Client = policy.Identity{Kind: "user", ID: "\xff\xfe" + strings.Repeat("é\x00", 80)}
	span := tracer.Within(testSampled)
	span.End(&r.plan, &d, nil, r.versions...)
	if client := attributesOf(spans.Ended()[0])["penstock.client"]; !utf8.ValidString(client) || !strings.HasPrefix(client, "user:\uFFFD") {
		t.Errorf("the client is %q", client)
	}
}

// TestNoTraceCostsNothing: a check outside a recorded trace makes no span and allocates nothing.
func TestNoTraceCostsNothing(t *testing.T) {
	tracer, spans := recorder()
	r := newReportTest(t, "{name: shop, rules: [{name: all, limit: 5/1m}]}")
	d := r.ask("/", false)
	unsampled := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))
	for name, begin := range map[string]func() Span{
		"no tracer":    func() Span { return (*Tracer)(nil).Within(testSampled) },
		"no parent":    func() Span { return tracer.Within("") },
		"no span":      func() Span { return SpanWithin(context.Background()) },
		"not recorded": func() Span { return SpanWithin(unsampled) },
	} {
		if n := testing.AllocsPerRun(100, func() {
			span := begin()
			span.End(&r.plan, &d, nil, r.versions...)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := len(spans.Ended()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

// BenchmarkSpan measures a check's span: without tracing in a bridge, without tracing in Caddy,
// where the context of a request is about ten contexts deep, and with tracing.
func BenchmarkSpan(b *testing.B) {
	tracer := NewTracer(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(sdktrace.NewBatchSpanProcessor(tracetest.NewInMemoryExporter()))))
	r := newReportTest(b, "{name: shop, rules: [{name: all, limit: 5/1m}]}")
	d := r.ask("/", false)
	deep := context.Background()
	for i := range 10 {
		deep = context.WithValue(deep, key(i), i)
	}
	for name, begin := range map[string]func() Span{
		"off":          func() Span { return (*Tracer)(nil).Within(testSampled) },
		"off in Caddy": func() Span { return SpanWithin(deep) },
		"on":           func() Span { return tracer.Within(testSampled) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				span := begin()
				span.End(&r.plan, &d, nil, r.versions...)
			}
		})
	}
}

// key is a key of a context.
type key int
