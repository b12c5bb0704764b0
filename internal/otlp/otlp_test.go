// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/test/otlptest"
)

// setVariables sets environment variables, because the exporters read the environment themselves.
// The result returns the value of a variable.
func setVariables(t *testing.T, variables map[string]string) func(string) string {
	t.Helper()
	for name, value := range variables {
		t.Setenv(name, value)
	}
	return func(name string) string { return variables[name] }
}

// TestBothProtocols sends a span and a metric over each protocol to a receiver.
func TestBothProtocols(t *testing.T) {
	for _, protocol := range []string{"", protocolHTTP, protocolGRPC} {
		t.Run("protocol "+protocol, func(t *testing.T) {
			receiver := otlptest.Start(t)
			variables := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.HTTP}
			if protocol != "" {
				variables["OTEL_EXPORTER_OTLP_PROTOCOL"] = protocol
			}
			if protocol == protocolGRPC {
				variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.GRPC
			}
			registry := prometheus.NewRegistry()
			counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "penstock_things_total"})
			counter.Add(3)
			registry.MustRegister(counter)
			s, err := Open(t.Context(), setVariables(t, variables), "penstock-test", registry, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			_, span := s.Spans().Tracer("test").Start(t.Context(), "work")
			span.End()
			if err := s.Close(); err != nil { // sends what is still queued
				t.Fatal(err)
			}
			if got := receiver.Spans("work"); len(got) != 1 || got[0].Service != "penstock-test" {
				t.Errorf("the spans are %+v", got)
			}
			if sum, found := receiver.Sum("penstock_things_total", nil); !found || sum != 3 || receiver.Resource("service.name") != "penstock-test" {
				t.Errorf("the metric is %v, %t, of %q", sum, found, receiver.Resource("service.name"))
			}
		})
	}
}

// TestOffByDefault: unless variables request it, nothing is opened and no goroutine is started.
func TestOffByDefault(t *testing.T) {
	for name, variables := range map[string]map[string]string{
		"nothing":  {},
		"disabled": {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"none": {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none",
			"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			s, err := Open(t.Context(), setVariables(t, variables), "penstock-test", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			if s != nil || err != nil || s.Spans() != nil || s.Close() != nil {
				t.Errorf("opened %+v, %v", s, err)
			}
			if after := runtime.NumGoroutine(); after > before {
				t.Errorf("%d goroutines were started", after-before)
			}
		})
	}
}

// TestSignals: each signal can be sent alone.
func TestSignals(t *testing.T) {
	for _, c := range []struct {
		variables map[string]string
		want      settings
	}{
		{map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, settings{traces: true, tracesBy: protocolHTTP}},
		{map[string]string{"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
			settings{metrics: true, metricsBy: protocolGRPC}},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_METRICS_EXPORTER": "none"},
			settings{traces: true, tracesBy: protocolHTTP}},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
			settings{traces: true, tracesBy: protocolGRPC, metrics: true, metricsBy: protocolHTTP}},
	} {
		if got, err := read(func(name string) string { return c.variables[name] }); err != nil || got != c.want {
			t.Errorf("%v: %+v, %v, want %+v", c.variables, got, err, c.want)
		}
	}
}

// TestWrongVariables: a value that is not supported is an error that names the remedy.
func TestWrongVariables(t *testing.T) {
	for _, c := range []struct{ variable, value, want string }{
		{"OTEL_TRACES_EXPORTER", "console", "OTEL_TRACES_EXPORTER is \"console\": write otlp or none"},
		{"OTEL_METRICS_EXPORTER", "prometheus", "OTEL_METRICS_EXPORTER is \"prometheus\": write otlp or none"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "write grpc or http/protobuf"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "OTEL_EXPORTER_OTLP_ENDPOINT is \"localhost:4318\": write a URL"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is \"c\": write a URL"},
		{"OTEL_RESOURCE_ATTRIBUTES", "no value", "write name=value,name=value"},
	} {
		variables := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", c.variable: c.value}
		t.Run(c.variable, func(t *testing.T) {
			_, err := Open(t.Context(), setVariables(t, variables), "penstock-test", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestFailuresAreLoggedOnceAMinute: a collector that is away does not fill the log.
func TestFailuresAreLoggedOnceAMinute(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(1_700_000_000, 0)
	f := &failures{logger: slog.New(slog.NewTextHandler(&out, nil)), now: func() time.Time { return now }}
	for range 10 {
		f.Handle(errors.New("connection refused"))
		now = now.Add(10 * time.Second)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "connection refused") || !strings.Contains(lines[1], "others=5") {
		t.Errorf("the log is %q", lines)
	}
}
