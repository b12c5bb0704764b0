// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/internal/store/redisstore"
)

// The metrics of the circuit breakers before Redis. The label is a server's address, as given in
// the options or by the servers themselves. At most [redisstore.InfoServersMax] servers have a
// series.
var (
	breakerDesc = prometheus.NewDesc("penstock_breaker_state",
		"Circuit breaker of the store: 0 closed, 1 open, 2 half-open; of several the worst.", nil, nil)
	serverBreakerDesc = prometheus.NewDesc("penstock_redis_breaker_state",
		"Circuit breaker of each server of Redis that is asked: 0 closed, 1 open, 2 half-open.", []string{"server"}, nil)
)

// describeBreakers describes the metrics of collectBreakers.
func describeBreakers(ch chan<- *prometheus.Desc) {
	ch <- breakerDesc
	ch <- serverBreakerDesc
}

// collectBreakers reports the state of each server's breaker, and the worst state of all. For a
// server that several stores use, it reports the worst of its states.
func collectBreakers(ch chan<- prometheus.Metric, stores ...*redisstore.Store) {
	all, of := redisstore.BreakerClosed, map[string]redisstore.BreakerState{}
	for _, store := range stores {
		for _, server := range store.Servers() {
			addr := labelOf(server.Addr)
			of[addr] = redisstore.Worse(of[addr], server.Breaker)
			all = redisstore.Worse(all, server.Breaker)
		}
	}
	ch <- prometheus.MustNewConstMetric(breakerDesc, prometheus.GaugeValue, float64(all))
	addrs := slices.Sorted(maps.Keys(of))
	for _, addr := range addrs[:min(len(addrs), redisstore.InfoServersMax)] {
		ch <- prometheus.MustNewConstMetric(serverBreakerDesc, prometheus.GaugeValue, float64(of[addr]), addr)
	}
}
