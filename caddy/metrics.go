// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/leasestore"
	"github.com/penstock/penstock/internal/redisstore"
	"github.com/penstock/penstock/internal/tally"
)

// The metrics of this process. They are no configuration's own, so that a reload does not set them back; each
// configuration registers them in its registry. No label ever names a client: there are as many series as the
// configurations had rules, times the outcomes that have happened or can.
var (
	common       = tally.New()
	waitingGauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_waiting",
		Help: "Requests that wait for a throttle rule.",
	}, func() float64 { return float64(lines.Waiting()) })
	invalidTargets = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_invalid_targets_total",
		Help: "Requests answered 400 because their target or host is of a form that is not served.",
	})
)

// storeCollector asks the stores in use at each scrape. It belongs to no configuration: after a reload that failed, Caddy
// shows the registry of the configuration that failed, while the one before runs on. During a reload there may be two
// stores; counters are added up, and of two breakers the worse one counts.
type storeCollector struct{}

// Describe implements [prometheus.Collector].
func (storeCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- tally.CountersDesc
	ch <- tally.OverflowsDesc
	tally.DescribeBreakers(ch)
	tally.DescribeShared(ch)
}

// Collect implements [prometheus.Collector].
func (storeCollector) Collect(ch chan<- prometheus.Metric) {
	sums := make(map[*prometheus.Desc]float64) // of what any store tells, 0 included
	var shared []leasestore.Stats
	var redis []*redisstore.Store
	stores.Range(func(_, value any) bool {
		store := value.(*pooledStore)
		if store.counters != nil {
			sums[tally.CountersDesc] += float64(store.counters())
			sums[tally.OverflowsDesc] += float64(store.overflows())
		}
		if store.redis != nil {
			redis = append(redis, store.redis)
		}
		if store.leases != nil {
			shared = append(shared, store.leases.Stats())
		}
		return true
	})
	if len(redis) > 0 {
		tally.CollectBreakers(ch, redis...)
	}
	if len(shared) > 0 {
		tally.CollectShared(ch, shared...)
	}
	for desc, sum := range sums {
		kind := prometheus.GaugeValue
		if desc == tally.OverflowsDesc {
			kind = prometheus.CounterValue
		}
		ch <- prometheus.MustNewConstMetric(desc, kind, sum)
	}
}

var metrics = append(common.Collectors(), waitingGauge, invalidTargets, storeCollector{})

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
