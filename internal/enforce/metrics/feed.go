// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/feed"
)

// FeedOf returns the metrics of a feed to a control plane.
func FeedOf(figures func() feed.Figures) []prometheus.Collector {
	counter := func(result string, of func(feed.Figures) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "penstock_control_batches_total",
			Help: "Batches for the control plane by result; failed are tries.", ConstLabels: prometheus.Labels{"result": result}},
			func() float64 { return float64(of(figures())) })
	}
	return []prometheus.Collector{
		counter("sent", func(f feed.Figures) uint64 { return f.Sent }),
		counter("rejected", func(f feed.Figures) uint64 { return f.Rejected }),
		counter("failed", func(f feed.Figures) uint64 { return f.Failed }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_control_spool_bytes",
			Help: "Bytes on the disk that the control plane does not have yet."}, func() float64 { return float64(figures().SpoolBytes) }),
	}
}
