// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/otlptest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// sendSoon holds environment variables that make the exporters of OpenTelemetry send often.
var sendSoon = []string{"OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_METRIC_EXPORT_INTERVAL=200"}

// awaitCheck waits until the collector has the span of a check with the given decision, and the
// parent of that span.
func awaitCheck(t *testing.T, collector *otlptest.Receiver, decision string) (check, proxy otlptest.Span) {
	t.Helper()
	eventually.Until(t, patience, "the collector has the span of a check that is "+decision+", and its parent", func() bool {
		for _, span := range collector.Spans("penstock.check") {
			var found bool
			if proxy, found = collector.ByID(span.Parent); found && span.Attributes["penstock.decision"] == decision {
				check = span
				return true
			}
		}
		return false
	})
	if check.Trace != proxy.Trace || check.BeganNanos < proxy.BeganNanos || check.EndedNanos < check.BeganNanos {
		t.Errorf("the check %+v is not within %+v", check, proxy)
	}
	return check, proxy
}

// awaitPatternMetric waits until the collector has the metric that counts requests by the path
// pattern of a rule.
func awaitPatternMetric(t *testing.T, collector *otlptest.Receiver, outcome string) {
	t.Helper()
	eventually.Until(t, patience, "the collector has the metric by path pattern", func() bool {
		sum, _ := collector.Sum("penstock_endpoint_requests_total", map[string]string{"policy": "shop", "rule": "api", "endpoint": "/api/*", "outcome": outcome})
		return sum >= 1
	})
}

// TestTracesOfCaddy tests that a check has a span, whose parent is the span of Caddy's directive
// tracing. Caddy also sends Penstock's metrics by OTLP.
func TestTracesOfCaddy(t *testing.T) {
	t.Parallel()
	collector := otlptest.Start(t)
	caddy := startCaddy(t, `{
	admin ADMIN
	metrics {
		otlp
	}
}
:SITE {
	tracing {
		span proxy
	}
	penstock {
		name shop
		rule api {
			match path /api/*
			limit 1/31d fixed_window
		}
	}
	respond ok
}
`, append(sendSoon, "OTEL_EXPORTER_OTLP_ENDPOINT="+collector.HTTP, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf")...)
	for _, want := range []struct {
		status   int
		decision string
	}{{http.StatusOK, "allowed"}, {http.StatusTooManyRequests, "denied"}} {
		if got := caddy.get("/api/x").status; got != want.status {
			t.Fatalf("status %d, want %d", got, want.status)
		}
		check, proxy := awaitCheck(t, collector, want.decision)
		if proxy.Name != "proxy" || check.Attributes["penstock.rule"] != "api" || check.Attributes["penstock.endpoint"] != "/api/*" ||
			check.Attributes["penstock.policy"] != "shop" || check.Attributes["penstock.source"] != "store" || check.Attributes["penstock.client"] != "" {
			t.Errorf("the check is %+v, its parent %+v", check, proxy)
		}
	}
	awaitPatternMetric(t, collector, "denied")
}

const tracedPolicy = `name: shop
events: {}
rules: [{name: api, match: {path: /api/*}, limit: 1/31d fixed_window}]
`

// traced makes an Envoy trace every request. COLLECTOR stands for the URL of the collector.
const traced = `use_remote_address: true, tracing: {random_sampling: {value: 100}, provider: {name: envoy.tracers.opentelemetry, typed_config: {
    "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, service_name: envoy,
    http_service: {http_uri: {uri: "COLLECTOR/v1/traces", cluster: NAME-collector, timeout: 5s}}}}}`

// handingOver is a filter that passes Envoy's span to Penstock's filter.
// docs/guides/opentelemetry.md contains it.
const handingOver = `{name: envoy.filters.http.header_mutation, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation,
    mutations: {request_mutations: [{append: {append_action: OVERWRITE_IF_EXISTS_OR_ADD,
      header: {key: traceparent, value: "00-%TRACE_ID%-%SPAN_ID%-01"}}}]}}}`

// newTracingSite returns a site whose Envoy sends its spans to the collector.
func newTracingSite(collector *otlptest.Receiver, name, filter string) *site {
	address := strings.TrimPrefix(collector.HTTP, "http://")
	return &site{filter: filter, set: relaxedDeadline, manager: strings.NewReplacer("COLLECTOR", collector.HTTP, "NAME", name).Replace(traced),
		cluster: bridgeCluster + "\n  - " + strings.NewReplacer("{name: NAME,", "{name: "+name+"-collector,", "cluster_name: NAME", "cluster_name: "+name+"-collector",
			"{pipe: {path: SOCKET}}", "{socket_address: {address: 127.0.0.1, port_value: "+portOf(address)+"}}").Replace(bridgeCluster)}
}

// TestTracesOfEnvoy tests that a check has a span in Envoy's trace. The bridge sends this span and
// its metrics by OTLP. With Penstock's filter, the parent is the span of the request, which
// header_mutation passes on. With Envoy's own filter, the parent is the span of the call to the
// bridge.
func TestTracesOfEnvoy(t *testing.T) {
	t.Parallel()
	if !strings.Contains(readFile(t, "../docs/guides/opentelemetry.md"), "- "+handingOver) {
		t.Error("docs/guides/opentelemetry.md has another filter")
	}
	collectors := [2]*otlptest.Receiver{otlptest.Start(t), otlptest.Start(t)}
	filter, service := newTracingSite(collectors[0], "filter", handingOver+",\n      "+wasmFilter), newTracingSite(collectors[1], "service", builtInFilter)
	useEnvoy(t, nil, filter, service)
	t.Run("filter", func(t *testing.T) {
		filter.sendsTraces(t, collectors[0], "OTEL_EXPORTER_OTLP_ENDPOINT="+collectors[0].HTTP)
	})
	t.Run("service", func(t *testing.T) {
		service.sendsTraces(t, collectors[1], "OTEL_EXPORTER_OTLP_ENDPOINT="+collectors[1].GRPC, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	})
}

// sendsTraces sends requests until one is denied, and checks the spans and the metrics that the
// collector gets.
func (s *site) sendsTraces(t *testing.T, collector *otlptest.Receiver, env ...string) {
	b := newBridge(t, tracedPolicy, "--rls-listen", "unix:"+s.grpc)
	b.listen, b.env = s.bridge, append(env, sendSoon...)
	b.run(t)
	eventually.Until(t, patience, "a request is denied", func() bool { return s.get(t, "/api/x").status == http.StatusTooManyRequests })
	for _, decision := range []string{"allowed", "denied"} {
		check, proxy := awaitCheck(t, collector, decision)
		if check.Service != "penstock-bridge" || proxy.Service != "envoy" || check.Attributes["penstock.endpoint"] != "/api/*" ||
			check.Attributes["penstock.source"] != "store" {
			t.Errorf("the check is %+v, its parent %+v", check, proxy)
		}
		if client := check.Attributes["penstock.client"]; (client == "ip:127.0.0.1") != (decision == "denied") {
			t.Errorf("the client of a check that is %s is %q", decision, client)
		}
	}
	awaitPatternMetric(t, collector, "denied")
}

// TestModuleTraces tests that a check in the native module has a span that Envoy itself makes and
// sends.
func TestModuleTraces(t *testing.T) {
	t.Parallel()
	collector, redis := otlptest.Start(t), redistest.Start(t)
	s := newTracingSite(collector, "module", moduleFilter(tracedPolicy+inRedis(redis)))
	e := startEnvoyIn(t, []string{modulePath(t)}, "", nil, s)
	for _, path := range []string{"/api/x", "/api/x", "/", "/", "/"} { // Envoy sends its spans as soon as it has some
		s.get(t, path)
	}
	for _, decision := range []string{"allowed", "denied"} {
		check, proxy := awaitCheck(t, collector, decision)
		if check.Service != "envoy" || proxy.Service != "envoy" || check.Attributes["penstock.endpoint"] != "/api/*" || check.Attributes["penstock.rule"] != "api" ||
			check.Attributes["penstock.source"] != "store" || check.Attributes["penstock.policy"] != "shop" {
			t.Errorf("the check is %+v, its parent %+v", check, proxy)
		}
	}
	e.mustRun()
}

// TestModuleSendsMetrics tests that the native module sends its metrics by OTLP to the collector
// that its configuration names. After an update that names another collector, the module sends the
// metrics to that one.
func TestModuleSendsMetrics(t *testing.T) {
	t.Parallel()
	first, second := otlptest.Start(t), otlptest.Start(t)
	settings := func(endpoint string) string {
		return tracedPolicy + "otlp: {endpoint: \"" + endpoint + "\", interval: 200ms}\n"
	}
	d := newDiscovered(t, "penstock", settings(first.HTTP))
	e := startEnvoyIn(t, []string{modulePath(t)}, "", nil, d.site)
	for _, want := range []int{http.StatusOK, http.StatusTooManyRequests} {
		if got := d.get(t, "/api/x").status; got != want {
			t.Fatalf("status %d, want %d", got, want)
		}
	}
	awaitPatternMetric(t, first, "denied")
	if got := first.Resource("service.name"); got != "penstock-module" {
		t.Errorf("the metrics are those of %q", got)
	}
	d.write(t, settings(second.HTTP))
	awaitPatternMetric(t, second, "denied")
	e.mustRun()
}
