// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"iter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// Stores is a collector of the figures of stores, which it reads at each scrape. The figures of
// several stores are added up; of their breakers, the worst state is reported.
type Stores iter.Seq[*store.Store]

// Describe implements [prometheus.Collector].
func (Stores) Describe(ch chan<- *prometheus.Desc) {
	ch <- countersDesc
	ch <- overflowsDesc
	describeBreakers(ch)
	describeServers(ch)
	describeShared(ch)
	describeRegions(ch)
}

// Collect implements [prometheus.Collector].
func (s Stores) Collect(ch chan<- prometheus.Metric) {
	var counters, overflows float64
	var inMemory bool
	var redis []*redisstore.Store
	var shared []leasestore.Stats
	var regions []*regionstore.Store
	for one := range s {
		if one.Memory != nil {
			inMemory = true
			counters += float64(one.Memory.Len())
			overflows += float64(one.Memory.Overflows())
		}
		if one.Redis != nil {
			redis = append(redis, one.Redis)
		}
		if one.Leases != nil {
			shared = append(shared, one.Leases.Stats())
		}
		if one.Loans != nil {
			regions = append(regions, one.Loans)
		}
	}
	if inMemory {
		ch <- prometheus.MustNewConstMetric(countersDesc, prometheus.GaugeValue, counters)
		ch <- prometheus.MustNewConstMetric(overflowsDesc, prometheus.CounterValue, overflows)
	}
	if len(redis) > 0 {
		collectBreakers(ch, redis...)
		collectServers(ch, time.Now(), redis...)
	}
	if len(shared) > 0 {
		collectShared(ch, shared...)
	}
	if len(regions) > 0 {
		collectRegions(ch, regions...)
	}
}
