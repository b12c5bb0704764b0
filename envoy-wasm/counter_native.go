// SPDX-License-Identifier: Apache-2.0

//go:build !wasm

package main

import "github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

// counter is one of the counters of the SDK's emulator.
type counter struct{ proxywasm.MetricCounter }

func newCounter(name string) counter { return counter{proxywasm.DefineCounterMetric(name)} }

func (c counter) increment() { c.Increment(1) }

// gauge is one of the gauges of the SDK's emulator.
type gauge struct{ proxywasm.MetricGauge }

func newGauge(name string) gauge { return gauge{proxywasm.DefineGaugeMetric(name)} }

func (g gauge) add(change int64) { g.Add(change) }
