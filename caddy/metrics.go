// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/enforce/metrics"
	"github.com/penstock/penstock/internal/store"
)

// The metrics of this process. The metrics belong to no configuration, so a reload does not reset
// them. Each configuration registers them in its own registry. No label names a client, so the
// number of series is bounded by rules times outcomes.
var (
	common       = metrics.New()
	waitingGauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "penstock_waiting",
		Help: "Requests that wait for a throttle rule.",
	}, func() float64 { return float64(throttleQueues.Waiting()) })
	invalidTargets = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_invalid_targets_total",
		Help: "Requests answered 400 because their target or host is of a form that is not served.",
	})
	earlyRequests = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "penstock_early_requests_total",
		Help: "Requests answered 425 because they came before the TLS handshake was complete.",
	})
)

// storesInUse yields the stores of all configurations. The metrics of stores belong to the process:
// after a failed reload, Caddy serves the registry of the failed configuration while the previous
// configuration continues to run. During a reload there may be two stores.
func storesInUse(yield func(*store.Store) bool) {
	stores.Range(func(_, value any) bool { return yield(value.(*pooledStore).opened) })
}

var collectors = append(append(common.Collectors(), metrics.Build("caddy")...), waitingGauge, invalidTargets, earlyRequests, metrics.Stores(storesInUse))

// registerMetrics puts the metrics into a configuration's registry.
func registerMetrics(registry *prometheus.Registry) error {
	if registry == nil {
		return nil // the context was created without a configuration
	}
	var problems []error
	for _, collector := range collectors {
		if err := registry.Register(collector); err != nil && !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
