// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/store/leasestore"
)

// The metrics of a store that several nodes share, and of decisions made without calling it.
var (
	storeCallsDesc = prometheus.NewDesc("penstock_store_calls_total",
		"Calls of the shared store.", nil, nil)
	leasedDesc = prometheus.NewDesc("penstock_leased_decisions_total",
		"Requests admitted from leased units, without asking the shared store.", nil, nil)
	rememberedDesc = prometheus.NewDesc("penstock_remembered_refusals_total",
		"Requests denied from a remembered denial, without asking the shared store.", nil, nil)
	returnedDesc = prometheus.NewDesc("penstock_lease_units_returned_total",
		"Leased units refunded unused.", nil, nil)
	inHandDesc = prometheus.NewDesc("penstock_lease_units_in_hand",
		"Leased units that are not used yet.", nil, nil)
)

// describeShared describes the metrics of collectShared.
func describeShared(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{storeCallsDesc, leasedDesc, rememberedDesc, returnedDesc, inHandDesc} {
		ch <- desc
	}
}

// collectShared reports the sums of the figures of shared stores.
func collectShared(ch chan<- prometheus.Metric, stores ...leasestore.Stats) {
	var sum leasestore.Stats
	for _, s := range stores {
		sum.Calls += s.Calls
		sum.Leased += s.Leased
		sum.Denials += s.Denials
		sum.Returned += s.Returned
		sum.InHand += s.InHand
	}
	counter := func(desc *prometheus.Desc, n uint64) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n))
	}
	counter(storeCallsDesc, sum.Calls)
	counter(leasedDesc, sum.Leased)
	counter(rememberedDesc, sum.Denials)
	counter(returnedDesc, sum.Returned)
	ch <- prometheus.MustNewConstMetric(inHandDesc, prometheus.GaugeValue, float64(sum.InHand))
}
