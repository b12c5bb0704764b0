// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
)

// shimWasm is the path of Kuadrant's wasm-shim, which is measured if this file exists.
// docs/explanation/benchmarks.md describes how to build it.
const shimWasm = ".cache/bench/wasm_shim.wasm"

// shimSettings is the shim's configuration. For requests to any host, the shim checks one limit of
// the client's address.
const shimSettings = `{"services": {"limitador": {"type": "ratelimit", "endpoint": "service", "failureMode": "deny", "timeout": "1s"}},
"actionSets": [{"name": "all", "routeRuleConditions": {"hostnames": ["*"]}, "actions": [{"service": "limitador", "scope": "bench",
"conditionalData": [{"data": [{"expression": {"key": "remote_address", "value": "source.remote_address"}}]}]}]}]}`

// shims starts Envoys with the wasm-shim, each with a Limitador in memory.
func shims(b *bench, limit, nodes int) (*system, error) {
	if _, err := os.Stat(shimWasm); err != nil {
		return nil, absent{"wasm-shim"}
	}
	return servedBy(routeDirect, filterWasm(shimWasm, shimSettings), limitadors("memory"))(b, limit, nodes)
}

// shimPart is the rate of requests that Kuadrant's wasm-shim served, divided by the rate of an
// Envoy without a filter.
const shimPart = 2_500.0 / 57_400

// shimEarlier is an earlier measurement of Kuadrant's wasm-shim with Limitador in memory and 64
// connections. In the same run, an Envoy without a filter served 57,400 requests a second. This
// measurement is shown if the shim is not installed. The benchmark does not require the tools that
// are needed to build the shim.
var shimEarlier = []string{"2,500", "0.04", "24,780", "397", "Envoy 374 + Limitador 23", "", "", ""}

// besideShim compares Penstock in memory with the wasm-shim. If the shim is not installed, its
// figure comes from an earlier run, and each figure is relative to the Envoy without a filter in
// its own run.
func besideShim(memory, shim, none *contender) string {
	ratio, how := of(memory.seen.seen, perSecond)/of(none.seen.seen, perSecond)/shimPart, ", each beside the Envoy without a filter of its own run"
	if shim.seen != nil {
		ratio, how = of(memory.seen.seen, perSecond)/of(shim.seen.seen, perSecond), ""
	}
	return fmt.Sprintf("In memory it serves %.1f × the requests of Kuadrant's wasm-shim%s (%s).", ratio, how, against(ratio >= 6, "6 ×"))
}
