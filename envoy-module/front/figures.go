// SPDX-License-Identifier: Apache-2.0

package front

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/store"
)

// registerMetrics registers the metrics of the process. These metrics have the same names and
// labels as the metrics of the other fronts.
func (p *Process) registerMetrics() {
	waiting := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "penstock_waiting",
		Help: "Requests that wait for a throttle rule."}, func() float64 { return float64(p.lines.Waiting()) })
	panics := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "penstock_module_panics_total",
		Help: "Panics in the native module. Each was recovered, and on_error decided the request."}, func() float64 { return float64(p.Panics()) })
	for _, one := range slices.Concat(p.metrics.Collectors(), metrics.Build(frontName), metrics.EventsOf(p.reports.log),
		metrics.FeedOf(p.reports.figures), []prometheus.Collector{metrics.Stores(p.storesInUse), metrics.Directories(p.directoriesInUse),
			waiting, panics, p.invalidTargets, p.tried}) {
		p.registry.MustRegister(guardedCollector{one, p})
	}
}

// guardedCollector is a collector that recovers from panics. This is necessary because a registry
// calls collectors in goroutines of its own.
type guardedCollector struct {
	prometheus.Collector
	process *Process
}

// Collect implements [prometheus.Collector].
func (c guardedCollector) Collect(into chan<- prometheus.Metric) {
	defer c.process.guard()
	c.Collector.Collect(into)
}

// Process.inUse returns the stores that are open.
func (p *Process) inUse() (all []*sharedStore) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range p.stores {
		all = append(all, one.value)
	}
	return all
}

func (p *Process) storesInUse(yield func(*store.Store) bool) {
	for _, s := range p.inUse() {
		if !yield(s.Store) {
			return
		}
	}
}

func (p *Process) directoriesInUse(yield func(*directory.Directory) bool) {
	for _, s := range p.inUse() {
		if s.directory != nil && !yield(s.directory) {
			return
		}
	}
}
