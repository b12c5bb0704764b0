// SPDX-License-Identifier: Apache-2.0

package front

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/otlptest"
)

// TestMetricsAreSentByOTLP tests two configurations with the same collector. The metrics of the
// process are sent to it only once, until the second configuration ends.
func TestMetricsAreSentByOTLP(t *testing.T) {
	receiver := otlptest.Start(t)
	for _, service := range []string{"penstock-module", "edge"} {
		p := NewProcess(slog.New(slog.DiscardHandler))
		settings := fmt.Sprintf("otlp: {endpoint: %q, service: %s, interval: 1h}\n", receiver.HTTP, service)
		first, second := openedIn(t, p, three+settings), openedIn(t, p, three+settings)
		for range 5 {
			ask(t, first, request("/"))
		}
		if len(p.senders) != 1 {
			t.Errorf("%s: %d senders, want 1", service, len(p.senders))
		}
		for _, f := range []*Front{first, second} {
			if err := f.Close(); err != nil { // the last one sends what is not sent yet
				t.Error(err)
			}
		}
		allowed, _ := receiver.Sum("penstock_requests_total", map[string]string{"policy": "shop", "outcome": "allowed"})
		denied, _ := receiver.Sum("penstock_requests_total", map[string]string{"policy": "shop", "outcome": "denied"})
		if allowed != 3 || denied != 2 || receiver.Resource("service.name") != service || len(p.senders) != 0 {
			t.Errorf("%s: %v allowed and %v denied of %q, %d senders", service, allowed, denied, receiver.Resource("service.name"), len(p.senders))
		}
	}
}

// panickingCollector is a collector that panics.
type panickingCollector struct{ prometheus.Collector }

func (panickingCollector) Collect(chan<- prometheus.Metric) { panic("provoked") }

// TestAPanicOfACollectorEndsNothing tests that metrics are still sent if a collector panics, either
// in a goroutine of the registry or in the exporter's goroutine.
func TestAPanicOfACollectorEndsNothing(t *testing.T) {
	receiver, p := otlptest.Start(t), NewProcess(slog.New(slog.DiscardHandler))
	p.registry.MustRegister(guardedCollector{panickingCollector{prometheus.NewGauge(prometheus.GaugeOpts{Name: "penstock_bad"})}, p})
	f := openedIn(t, p, three+fmt.Sprintf("otlp: {endpoint: %q, interval: 100ms}\n", receiver.HTTP))
	eventually.Until(t, 30*time.Second, "the metrics without the bad one are sent", func() bool {
		_, found := receiver.Sum("penstock_build_info", nil)
		return found && p.Panics() > 0
	})
	p.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_worse"}, func() float64 { panic("provoked") }))
	before := p.Panics()
	eventually.Until(t, 30*time.Second, "the exporter goes on", func() bool { return p.Panics() > before+4 })
	if err := f.Close(); err == nil {
		t.Error("the last metrics cannot be gathered, and the end reports no error")
	}
}
