// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/events"
)

// EventsOf returns the metrics of a log of events.
func EventsOf(log *events.Log) []prometheus.Collector {
	counter := func(name, help string, labels prometheus.Labels, of func(events.Figures) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(of(log.Figures())) })
	}
	const droppedName, dropped = "penstock_events_dropped_total", "Decisions that were to be reported and that no event shows, by reason."
	return []prometheus.Collector{
		counter("penstock_events_total", "Events of decisions that were written.", nil, func(f events.Figures) uint64 { return f.Written }),
		counter(droppedName, dropped, prometheus.Labels{"reason": "rate"}, func(f events.Figures) uint64 { return f.Beyond }),
		counter(droppedName, dropped, prometheus.Labels{"reason": "sink"}, func(f events.Figures) uint64 { return f.Unwritten }),
	}
}
