// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/events"
)

const (
	// spanScope is the instrumentation scope of spans.
	spanScope = "github.com/penstock/penstock"
	spanName  = "penstock.check"
	// attributesMax is the maximum number of attributes of a span.
	attributesMax = 9
)

// These are the values of penstock.source, which states what decided the request.
const (
	sourcePolicy  = "policy"   // nothing had to be counted
	sourceStore   = "store"    // the store, leased units or a remembered denial
	sourceLocal   = "local"    // the share of this process, because the store did not answer
	sourceOnError = "on_error" // the store did not answer
)

// Span is the span of a check under way, as a child of the proxy's span. The zero Span records
// nothing. A request whose proxy records no trace has the zero Span.
type Span struct {
	tracer trace.Tracer // if nil, nothing is recorded
	proxy  context.Context
	kind   trace.SpanKind
	began  time.Time
}

// SpanWithin returns the span of a check that begins now, in the span that ctx carries. SpanWithin
// does not allocate if that span is not recorded.
func SpanWithin(ctx context.Context) Span {
	proxy := trace.SpanFromContext(ctx)
	if !proxy.IsRecording() {
		return Span{}
	}
	return Span{tracer: proxy.TracerProvider().Tracer(spanScope), proxy: ctx, kind: trace.SpanKindInternal, began: time.Now()}
}

// Tracer makes the spans of checks that another process asks for. A nil *Tracer makes none.
type Tracer struct{ tracer trace.Tracer }

// NewTracer returns a tracer whose spans go to the provider.
func NewTracer(provider trace.TracerProvider) *Tracer {
	return &Tracer{provider.Tracer(spanScope)}
}

// Within returns the span of a check that begins now, in the span that traceparent names. There is
// no span if traceparent is not valid, or if the trace is not sampled.
func (t *Tracer) Within(traceparent string) Span {
	if t == nil || traceparent == "" {
		return Span{}
	}
	proxy := propagation.TraceContext{}.Extract(context.Background(), parent(traceparent))
	if !trace.SpanContextFromContext(proxy).IsSampled() {
		return Span{}
	}
	return Span{tracer: t.tracer, proxy: proxy, kind: trace.SpanKindServer, began: time.Now()}
}

// parent is a carrier that contains only a traceparent.
type parent string

const traceparentKey = "traceparent"

// Get implements [propagation.TextMapCarrier].
func (p parent) Get(key string) string {
	if key == traceparentKey {
		return string(p)
	}
	return ""
}

// Set implements [propagation.TextMapCarrier]. Set does nothing, because nothing is forwarded.
func (parent) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (parent) Keys() []string { return []string{traceparentKey} }

// End records the span with the decision of the plan's request. The argument versions contains the
// versions of the policies that decided the request, and err is the error of the store, or nil.
func (s *Span) End(plan *core.Plan, d *core.Decision, err error, versions ...*live.Version) {
	if s.tracer != nil {
		s.record(plan, d, err, versions)
		*s = Span{}
	}
}

// Span.record makes the span and ends it.
func (s *Span) record(plan *core.Plan, d *core.Decision, err error, versions []*live.Version) {
	_, span := s.tracer.Start(s.proxy, spanName, trace.WithTimestamp(s.began), trace.WithSpanKind(s.kind))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, "")
	}
	attributes := make([]attribute.KeyValue, 0, attributesMax)
	Attributes(plan, d, err, versions, func(key, value string) { attributes = append(attributes, attribute.String(key, value)) })
	span.SetAttributes(attributes...)
}

// Attributes calls add(...) for each attribute of the span of a check. The arguments are those of
// [Span.End].
func Attributes(plan *core.Plan, d *core.Decision, err error, versions []*live.Version, add func(key, value string)) {
	text := func(key, value string) {
		if value != "" {
			add(key, value)
		}
	}
	if err != nil {
		text("error.type", metrics.FailureKind(err))
	}
	_, endpoint := plan.Reported(d)
	text("penstock.decision", d.Outcome.String())
	text("penstock.source", sourceOf(plan, d, err))
	text("penstock.rule", ruleOf(plan, d))
	text("penstock.endpoint", endpoint)
	if len(versions) > 0 {
		v := decidingVersion(plan, d, versions)
		text("penstock.policy", v.Document.Name)
		text("penstock.version", v.ID)
		if settings := v.EventsOf(d.Rule); showClient(&settings, d) {
			text("penstock.client", attributeText(events.ShownClient(d.Client.Kind, d.Client.ID, settings.Address)))
			text("client.address", events.ShownAddress(plan.Peer(), settings.Address))
		}
	}
}

// showClient reports whether events with these settings name the client of the decision.
func showClient(settings *policy.Events, d *core.Decision) bool {
	if d.Denied() {
		return settings.Denied
	}
	return settings.AdmittedPPM > 0
}

// attributeText converts a text that a client chose to the value of an attribute. Without valid
// UTF-8, the spans of a whole batch could not be sent.
func attributeText(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// sourceOf returns what decided the request.
func sourceOf(plan *core.Plan, d *core.Decision, err error) string {
	if err != nil || d.Outcome == core.OutcomeDegradedDenied {
		return sourceOnError
	}
	results := plan.Results()
	if len(results) == 0 || d.Outcome == core.OutcomeBlocked || d.Outcome == core.OutcomeMissing {
		return sourcePolicy
	}
	for i := range results {
		if results[i].Local {
			return sourceLocal
		}
	}
	return sourceStore
}
