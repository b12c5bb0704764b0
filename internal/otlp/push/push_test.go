// SPDX-License-Identifier: Apache-2.0

package push

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metricservice "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/penstock/penstock/internal/test/eventually"
)

const patience = 30 * time.Second

// wanted is the report of the metrics of the function things.
const wanted = `resource_metrics {
  resource { attributes { key: "service.name" value { string_value: "things" } } }
  scope_metrics {
    scope { name: "github.com/penstock/penstock" }
    metrics { name: "things" description: "Now." gauge { data_points { attributes { key: "of" value { string_value: "the \u00e9" } }
      start_time_unix_nano: 5000000000 time_unix_nano: 7000000000 as_double: -2.5 } } }
    metrics { name: "things_seconds" description: "Times." histogram { aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE
      data_points { start_time_unix_nano: 5000000000 time_unix_nano: 7000000000 count: 4 sum: 17
        bucket_counts: 1 bucket_counts: 2 bucket_counts: 1 explicit_bounds: 1 explicit_bounds: 5 } } }
    metrics { name: "things_total" description: "So far." sum { aggregation_temporality: AGGREGATION_TEMPORALITY_CUMULATIVE is_monotonic: true
      data_points { start_time_unix_nano: 5000000000 time_unix_nano: 7000000000 as_double: 3 } } }
  }
}`

// things returns a registry with a metric of each kind.
func things() *prometheus.Registry {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "So far."})
	counter.Add(3)
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "things", Help: "Now."}, []string{"of"})
	gauge.WithLabelValues("the é").Set(-2.5)
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "things_seconds", Help: "Times.", Buckets: []float64{1, 5}})
	for _, seconds := range []float64{1, 2, 5, 9} {
		histogram.Observe(seconds)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(counter, gauge, histogram)
	return registry
}

// TestReport encodes metrics of all kinds, decodes the report with the types of OTLP, and compares
// it with the wanted report.
func TestReport(t *testing.T) {
	families, err := things().Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got, want metricservice.ExportMetricsServiceRequest
	if err := proto.Unmarshal(encode([][2]string{{"service.name", "things"}}, families, time.Unix(5, 0), time.Unix(7, 0)), &got); err != nil {
		t.Fatal(err)
	}
	if err := prototext.Unmarshal([]byte(wanted), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, &got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

// TestATroubledCollector tests that a collector is named in the log once if it answers with an
// error, a redirect or an endless body, and that the reports go on.
func TestATroubledCollector(t *testing.T) {
	asked := make(chan *http.Request, 100)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect is followed") }))
	defer other.Close()
	answers := []func(w http.ResponseWriter, r *http.Request){
		func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no room", http.StatusServiceUnavailable) },
		func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) },
		func(http.ResponseWriter, *http.Request) {},
	}
	var n atomic.Int64 // a request that was given up may be answered at the same time as the next one
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers[min(int(n.Add(1)), len(answers))-1](w, r)
		select {
		case asked <- r:
		default:
		}
	}))
	defer collector.Close()
	var log eventually.Journal
	s, err := Open(Options{Endpoint: collector.URL + "/otlp", Headers: map[string]string{"authorization": "Bearer x"}, Interval: intervalMin,
		Gatherer: things(), Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	for range len(answers) {
		if r := <-asked; r.URL.Path != "/otlp/v1/metrics" || r.Header.Get("Authorization") != "Bearer x" {
			t.Errorf("asked for %s with %v", r.URL, r.Header)
		}
	}
	eventually.Until(t, patience, "the end of the trouble is in the log", func() bool { return strings.Contains(log.String(), "sent by OTLP again") })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := log.String(); strings.Count(got, "could not be sent") != 1 || !strings.Contains(got, "no room") {
		t.Errorf("the log is %s", got)
	}
}

// TestClosesBesideAHungCollector tests that Close does not wait for a collector that never answers.
func TestClosesBesideAHungCollector(t *testing.T) {
	hung := make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hung }))
	defer collector.Close()
	defer close(hung)
	s, err := Open(Options{Endpoint: collector.URL, Gatherer: things(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "the last metrics could not be sent") {
		t.Errorf("the end reports %v", err)
	}
}

// TestWrongOptions: a setting that cannot work is an error that names the remedy.
func TestWrongOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"write a URL":            {Endpoint: "localhost:4318"},
		"more than a host":       {Endpoint: "http://me:secret@c:4318"},
		"interval 1ms":           {Endpoint: "http://c", Interval: time.Millisecond},
		"\"a b\" is not":         {Endpoint: "http://c", Headers: map[string]string{"a b": "x"}},
		"a value of one line":    {Endpoint: "http://c", Headers: map[string]string{"a": "x\r\ny: z"}},
		"\"\" is not a header f": {Endpoint: "http://c", Headers: map[string]string{"": "x"}},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: the error is %v, want %q", o, err, want)
		}
	}
}
