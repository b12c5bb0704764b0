// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/store/regionstore"
)

// The metrics of counters that regions tell each other about.
var (
	changesOmittedDesc = prometheus.NewDesc("penstock_gossip_changes_omitted_total",
		"Changed counters that other regions are not told about until they change again: too many had changed in this process.", nil, nil)
	changesRemovedDesc = prometheus.NewDesc("penstock_gossip_changes_removed_total",
		"Changed counters that were removed from the set in Redis, perhaps before the region's agent had read them.", nil, nil)
)

// describeRegions describes the metrics of collectRegions.
func describeRegions(ch chan<- *prometheus.Desc) {
	ch <- changesOmittedDesc
	ch <- changesRemovedDesc
}

// collectRegions reports the sums of the figures of stores.
func collectRegions(ch chan<- prometheus.Metric, stores ...*regionstore.Store) {
	var omitted, removed uint64
	for _, s := range stores {
		left, gone := s.ChangesLeft()
		omitted, removed = omitted+left, removed+gone
	}
	ch <- prometheus.MustNewConstMetric(changesOmittedDesc, prometheus.CounterValue, float64(omitted))
	ch <- prometheus.MustNewConstMetric(changesRemovedDesc, prometheus.CounterValue, float64(removed))
}
