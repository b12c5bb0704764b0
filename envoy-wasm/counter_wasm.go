// SPDX-License-Identifier: Apache-2.0

//go:build wasm

package main

// counter is one of Envoy's counters. The SDK's counter formats its panic with fmt if Envoy rejects
// a counter, which adds 0.4 MB of fmt and reflect. This counter ignores increments if Envoy has
// rejected it.
type counter uint32

//go:wasmimport env proxy_define_metric
func proxyDefineMetric(kind uint32, name string, id *uint32) (status uint32)

//go:wasmimport env proxy_increment_metric
func proxyIncrementMetric(id uint32, offset int64) (status uint32)

// The kinds of metrics in the ABI.
const (
	kindCounter = 0
	kindGauge   = 1
)

func newMetric(kind uint32, name string) (id uint32) {
	if proxyDefineMetric(kind, name, &id) != 0 {
		return 0
	}
	return id
}

func newCounter(name string) counter { return counter(newMetric(kindCounter, name)) }

func (c counter) increment() { proxyIncrementMetric(uint32(c), 1) }

// gauge is one of Envoy's gauges, which all workers share.
type gauge uint32

func newGauge(name string) gauge { return gauge(newMetric(kindGauge, name)) }

func (g gauge) add(change int64) { proxyIncrementMetric(uint32(g), change) }
