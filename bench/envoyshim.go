// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
)

// shimWasm is Kuadrant's wasm-shim. It is used where it is installed: docs/benchmarks.md says how it is built.
const shimWasm = ".cache/bench/wasm_shim.wasm"

// shimSettings is its configuration: it asks for every request, of whatever host, for one limit of the client's address.
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

// shimPart is what Kuadrant's wasm-shim served of the requests of an Envoy without a filter.
const shimPart = 2_500.0 / 57_400

// Kuadrant's wasm-shim with Limitador in memory, as measured once with 64 connections beside 57,400 requests a second of an
// Envoy without a filter: for where it is not installed, since it is built with tools that this benchmark cannot ask for.
var shimEarlier = []string{"2,500", "0.04", "24,780", "397", "Envoy 374 + Limitador 23", "", "", ""}

// besideShim compares Penstock in memory with the wasm-shim: in one run, or, where that is not installed, each beside the
// Envoy without a filter of its own run.
func besideShim(memory, shim, none *contender) string {
	ratio, how := of(memory.seen.seen, perSecond)/of(none.seen.seen, perSecond)/shimPart, ", each beside the Envoy without a filter of its own run"
	if shim.seen != nil {
		ratio, how = of(memory.seen.seen, perSecond)/of(shim.seen.seen, perSecond), ""
	}
	return fmt.Sprintf("In memory it serves %.1f × the requests of Kuadrant's wasm-shim%s (%s).", ratio, how, against(ratio >= 6, "6 ×"))
}
