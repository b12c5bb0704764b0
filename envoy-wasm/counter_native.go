// SPDX-License-Identifier: Apache-2.0

//go:build !wasm

package main

import "github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"

// counter is one of the counters of the SDK's emulator.
type counter struct{ proxywasm.MetricCounter }

func newCounter(name string) counter { return counter{proxywasm.DefineCounterMetric(name)} }

func (c counter) increment() { c.Increment(1) }
