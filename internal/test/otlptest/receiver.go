// SPDX-License-Identifier: Apache-2.0

// Package otlptest provides a receiver of OTLP for tests.
package otlptest

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	metricservice "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	traceservice "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Receiver receives spans and metrics by OTLP, over HTTP and over gRPC. A Receiver is safe for
// concurrent use.
type Receiver struct {
	HTTP, GRPC string // its addresses, as URLs

	mu      sync.Mutex
	spans   []Span
	metrics map[string]*metrics.Metric // by name, the one that was received last
	from    map[string]string          // the attributes of the resource that was received last
}

// Span is a span that was received. Identifiers are in hexadecimal form.
type Span struct {
	Service, Name          string
	Trace, ID, Parent      string
	Kind                   trace.Span_SpanKind
	Failed                 bool
	Attributes             map[string]string
	BeganNanos, EndedNanos uint64
}

// Start starts a receiver that ends with the test.
func Start(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{metrics: map[string]*metrics.Metric{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", serve(r.takeSpans))
	mux.HandleFunc("POST /v1/metrics", serve(r.takeMetrics))
	overHTTP, overGRPC := listen(t), listen(t)
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(overHTTP) }()
	t.Cleanup(func() { _ = server.Close() })
	rpc := grpc.NewServer()
	traceservice.RegisterTraceServiceServer(rpc, spansOf{r: r})
	metricservice.RegisterMetricsServiceServer(rpc, metricsOf{r: r})
	go func() { _ = rpc.Serve(overGRPC) }()
	t.Cleanup(rpc.Stop)
	r.HTTP, r.GRPC = "http://"+overHTTP.Addr().String(), "http://"+overGRPC.Addr().String()
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Spans returns the spans received so far that have the given name.
func (r *Receiver) Spans(name string) (found []Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, span := range r.spans {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// ByID returns the span with the given identifier.
func (r *Receiver) ByID(id string) (Span, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.spans, func(s Span) bool { return s.ID == id })
	if i < 0 {
		return Span{}, false
	}
	return r.spans[i], true
}

// Sum returns the sum of a metric over the points that have all of the labels. The result named
// found is false if there is no such point.
func (r *Receiver) Sum(name string, labels map[string]string) (sum float64, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	metric := r.metrics[name]
	for _, point := range append(metric.GetSum().GetDataPoints(), metric.GetGauge().GetDataPoints()...) {
		has := texts(point.GetAttributes())
		matches := true
		for label, value := range labels {
			matches = matches && has[label] == value
		}
		if matches {
			sum, found = sum+point.GetAsDouble()+float64(point.GetAsInt()), true
		}
	}
	return sum, found
}

// Resource returns the value of an attribute of the process that last sent metrics.
func (r *Receiver) Resource(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.from[name]
}

// serve returns a handler that decodes the body of a request and passes it to take.
func serve[T any, M interface {
	*T
	proto.Message
}](take func(M)) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		body := io.Reader(request.Body)
		if request.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			body = unzipped
		}
		data, err := io.ReadAll(body)
		message := M(new(T))
		if err == nil {
			err = proto.Unmarshal(data, message)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		take(message)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}
}

func (r *Receiver) takeSpans(request *traceservice.ExportTraceServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range request.GetResourceSpans() {
		service := texts(from.GetResource().GetAttributes())["service.name"]
		for _, scope := range from.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				r.spans = append(r.spans, Span{Service: service, Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()),
					ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()), Kind: s.GetKind(),
					Failed: s.GetStatus().GetCode() == trace.Status_STATUS_CODE_ERROR, Attributes: texts(s.GetAttributes()),
					BeganNanos: s.GetStartTimeUnixNano(), EndedNanos: s.GetEndTimeUnixNano()})
			}
		}
	}
}

func (r *Receiver) takeMetrics(request *metricservice.ExportMetricsServiceRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, from := range request.GetResourceMetrics() {
		r.from = texts(from.GetResource().GetAttributes())
		for _, scope := range from.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				r.metrics[m.GetName()] = m
			}
		}
	}
}

func texts(attributes []*common.KeyValue) map[string]string {
	all := map[string]string{}
	for _, one := range attributes {
		all[one.GetKey()] = one.GetValue().GetStringValue()
	}
	return all
}

// spansOf serves spans over gRPC.
type spansOf struct {
	traceservice.UnimplementedTraceServiceServer
	r *Receiver
}

// Export implements the trace service.
func (s spansOf) Export(_ context.Context, request *traceservice.ExportTraceServiceRequest) (*traceservice.ExportTraceServiceResponse, error) {
	s.r.takeSpans(request)
	return new(traceservice.ExportTraceServiceResponse), nil
}

// metricsOf serves metrics over gRPC.
type metricsOf struct {
	metricservice.UnimplementedMetricsServiceServer
	r *Receiver
}

// Export implements the metrics service.
func (s metricsOf) Export(_ context.Context, request *metricservice.ExportMetricsServiceRequest) (*metricservice.ExportMetricsServiceResponse, error) {
	s.r.takeMetrics(request)
	return new(metricservice.ExportMetricsServiceResponse), nil
}
