// SPDX-License-Identifier: Apache-2.0

// Package otlp sends spans and metrics to an OpenTelemetry collector.
//
// # Promise
//
// Nothing is sent, and no goroutine is started, unless environment variables request it. The
// variables are those of the OpenTelemetry specification. A variable that would have no effect is
// an error. Requests never wait for the collector: spans that it does not take in time are dropped.
//
// # Price
//
// The exporters add 2.1 MB to the program. At most 2,048 spans wait to be sent, and a call sends at
// most 512 of them.
//
// # When not to use it
//
// Caddy has exporters of its own: the directive tracing, and the option otlp of metrics.
package otlp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// closeTime is how long the last spans and metrics may take to be sent.
const closeTime = 2 * time.Second

// Sending sends spans and metrics to a collector. A nil *Sending sends nothing.
type Sending struct {
	spans   *sdktrace.TracerProvider
	metrics *sdkmetric.MeterProvider
}

// Open starts to send the signals that environment variables request. The argument service is the
// name of the service, unless the environment names the service. The metrics are those of the
// gatherer. If the variables request no signal, the result is nil. The caller must close the
// result.
func Open(ctx context.Context, getenv func(string) string, service string, gatherer prometheus.Gatherer, logger *slog.Logger) (*Sending, error) {
	wanted, err := read(getenv)
	if err != nil || !wanted.traces && !wanted.metrics {
		return nil, err
	}
	from, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", service)), resource.WithFromEnv(), resource.WithTelemetrySDK())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w; write name=value,name=value", err)
	}
	otel.SetErrorHandler(&failures{logger: logger, now: time.Now})
	s := new(Sending)
	if wanted.traces {
		exporter, err := spanExporter(ctx, wanted.tracesBy)
		if err != nil {
			return nil, err
		}
		s.spans = sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(from))
		logger.Info("spans of checks are sent by OTLP", "protocol", wanted.tracesBy)
	}
	if wanted.metrics {
		exporter, err := metricExporter(ctx, wanted.metricsBy)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(from), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter,
			sdkmetric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(gatherer))))))
		logger.Info("metrics are sent by OTLP", "protocol", wanted.metricsBy)
	}
	return s, nil
}

func spanExporter(ctx context.Context, protocol string) (sdktrace.SpanExporter, error) {
	if protocol == protocolGRPC {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}

func metricExporter(ctx context.Context, protocol string) (sdkmetric.Exporter, error) {
	if protocol == protocolGRPC {
		return otlpmetricgrpc.New(ctx)
	}
	return otlpmetrichttp.New(ctx)
}

// Spans returns the provider of tracers; nil if no spans are sent.
func (s *Sending) Spans() trace.TracerProvider {
	if s == nil || s.spans == nil {
		return nil
	}
	return s.spans
}

// Close sends the last spans and metrics, but gives up after two seconds.
func (s *Sending) Close() error {
	if s == nil {
		return nil
	}
	ending, end := context.WithTimeout(context.Background(), closeTime)
	defer end()
	var problems []error
	if s.spans != nil {
		problems = append(problems, s.spans.Shutdown(ending))
	}
	if s.metrics != nil {
		problems = append(problems, s.metrics.Shutdown(ending))
	}
	return errors.Join(problems...)
}

// The protocols of OTLP.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// settings are the signals that environment variables request.
type settings struct {
	traces, metrics     bool
	tracesBy, metricsBy string
}

// read reads the environment. A signal is sent if its exporter is otlp, or if its exporter is not
// set and there is an endpoint for it.
func read(getenv func(string) string) (w settings, err error) {
	if getenv("OTEL_SDK_DISABLED") == "true" {
		return w, nil
	}
	signal := func(name string) (on bool, protocol string, err error) {
		exporter := "OTEL_" + name + "_EXPORTER"
		place := "OTEL_EXPORTER_OTLP_" + name + "_ENDPOINT"
		endpoint := getenv(place)
		if endpoint == "" {
			place = "OTEL_EXPORTER_OTLP_ENDPOINT"
			endpoint = getenv(place)
		}
		switch value := getenv(exporter); {
		case value == "none", value == "" && endpoint == "":
			return false, "", nil
		case value != "otlp" && value != "":
			return false, "", fmt.Errorf("%s is %q: write otlp or none", exporter, value)
		}
		if at, err := url.Parse(endpoint); endpoint != "" && (err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "") {
			return false, "", fmt.Errorf("%s is %q: write a URL, as http://localhost:4318", place, endpoint)
		}
		const common = "OTEL_EXPORTER_OTLP_PROTOCOL"
		own := "OTEL_EXPORTER_OTLP_" + name + "_PROTOCOL"
		if protocol = cmp.Or(getenv(own), getenv(common), protocolHTTP); protocol != protocolGRPC && protocol != protocolHTTP {
			return false, "", fmt.Errorf("%s or %s is %q: write %s or %s", own, common, protocol, protocolGRPC, protocolHTTP)
		}
		return true, protocol, nil
	}
	var problems [2]error
	w.traces, w.tracesBy, problems[0] = signal("TRACES")
	w.metrics, w.metricsBy, problems[1] = signal("METRICS")
	return w, errors.Join(problems[:]...)
}
