// SPDX-License-Identifier: Apache-2.0

package tally

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/leasestore"
)

// What is told of a store that others share, and of what is decided without asking it.
var (
	storeCallsDesc = prometheus.NewDesc("penstock_store_calls_total",
		"Calls of the shared store.", nil, nil)
	leasedDesc = prometheus.NewDesc("penstock_leased_decisions_total",
		"Requests admitted from units in hand, without asking the shared store.", nil, nil)
	rememberedDesc = prometheus.NewDesc("penstock_remembered_refusals_total",
		"Requests refused from memory, without asking the shared store.", nil, nil)
	returnedDesc = prometheus.NewDesc("penstock_lease_units_returned_total",
		"Units taken in advance that were given back unused.", nil, nil)
	inHandDesc = prometheus.NewDesc("penstock_lease_units_in_hand",
		"Units taken in advance that are not used yet.", nil, nil)
)

// DescribeShared says what [CollectShared] tells.
func DescribeShared(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{storeCallsDesc, leasedDesc, rememberedDesc, returnedDesc, inHandDesc} {
		ch <- desc
	}
}

// CollectShared tells what shared stores have done, added up.
func CollectShared(ch chan<- prometheus.Metric, stores ...leasestore.Stats) {
	var sum leasestore.Stats
	for _, s := range stores {
		sum.Calls += s.Calls
		sum.Leased += s.Leased
		sum.Refusals += s.Refusals
		sum.Returned += s.Returned
		sum.InHand += s.InHand
	}
	counter := func(desc *prometheus.Desc, n uint64) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n))
	}
	counter(storeCallsDesc, sum.Calls)
	counter(leasedDesc, sum.Leased)
	counter(rememberedDesc, sum.Refusals)
	counter(returnedDesc, sum.Returned)
	ch <- prometheus.MustNewConstMetric(inHandDesc, prometheus.GaugeValue, float64(sum.InHand))
}
