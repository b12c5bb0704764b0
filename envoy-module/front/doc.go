// SPDX-License-Identifier: Apache-2.0

// Package front decides requests in Envoy's own process, with the core and the stores of Caddy's
// front. The package knows nothing of Envoy's interface for native modules, so its tests run
// without Envoy.
//
// # Promise
//
// No call blocks its caller. What memory, leased units or a remembered denial can decide is decided
// at once. Any other request waits while a bounded number of goroutines asks the store, and its
// [Waker] is called after the decision. Every request is decided: if the store does not answer, by
// on_error of its rules, and after a panic, by on_error of the policy.
//
// # Price
//
// A request that is decided at once takes no allocation. A request that waits takes 4 KB until its
// response begins. A waiting request has a goroutine only if it waits for a throttle rule, for a
// loan, or for the limits that the status path shows.
//
// # When not to use it
//
// The WebAssembly filter has memory of its own, and asks a bridge: see envoy-wasm/filter.
package front
