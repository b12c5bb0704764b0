// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/tally"
)

// The metrics of this process. They are no configuration's own, so that a reload does not set them back; each
// configuration registers them in its registry. No label ever names a client: there are as many series as the
// configurations had rules, times the outcomes that have happened or can.
var (
	common           = tally.New()
	checkSeconds     = common.CheckSeconds
	storeErrorsTotal = common.StoreErrors
	waitsTotal       = common.Waits
	settlementsTotal = common.Settlements
	unreadableTotal  = common.Unreadable
	waitingGauge     = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_waiting",
		Help: "Requests that wait for a throttle rule.",
	}, func() float64 { return float64(lines.Waiting()) })
)

var countersDesc, overflowsDesc, breakerDesc = tally.CountersDesc, tally.OverflowsDesc, tally.BreakerDesc

// storeCollector asks the stores in use at each scrape. It belongs to no configuration: after a reload that failed, Caddy
// shows the registry of the configuration that failed, while the one before runs on. During a reload there may be two
// stores; counters are added up, and of two breakers one that is not closed counts.
type storeCollector struct{}

// Describe implements [prometheus.Collector].
func (storeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- countersDesc
	ch <- overflowsDesc
	ch <- breakerDesc
}

// Collect implements [prometheus.Collector].
func (storeCollector) Collect(ch chan<- prometheus.Metric) {
	sums, known := make(map[*prometheus.Desc]float64), make(map[*prometheus.Desc]bool)
	stores.Range(func(_, value any) bool {
		store := value.(*pooledStore)
		if store.counters != nil {
			sums[countersDesc] += float64(store.counters())
			sums[overflowsDesc] += float64(store.overflows())
			known[countersDesc], known[overflowsDesc] = true, true
		}
		if store.breaker != nil {
			sums[breakerDesc] = max(sums[breakerDesc], store.breaker())
			known[breakerDesc] = true
		}
		return true
	})
	for desc := range known {
		kind := prometheus.GaugeValue
		if desc == overflowsDesc {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(desc, kind, sums[desc])
	}
}

var metrics = append(common.Collectors(), waitingGauge, storeCollector{})

// register puts the metrics into a configuration's registry.
func register(registry *prometheus.Registry) error {
	if registry == nil {
		return nil // a context made without a configuration
	}
	var problems []error
	for _, collector := range metrics {
		if err := registry.Register(collector); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
