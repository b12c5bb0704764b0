// SPDX-License-Identifier: Apache-2.0

// Package front decides requests in Envoy's own process, with the same core and the same stores as
// Caddy's front. The package does not use Envoy's interface for native modules, so its tests run
// without Envoy.
//
// # Promise
//
// No call blocks its caller. A request that can be decided by counters in memory, leased units or a
// remembered denial is decided at once. Any other request waits, a bounded number of goroutines
// asks the store, and the request's [Waker] is called after the decision. Every request is decided:
// if the store does not answer, by on_error of the request's rules, and after a panic, by on_error
// of the policy.
//
// # Price
//
// A request that is decided at once makes no allocation. A request that waits takes 4 KB until its
// response begins. It has a goroutine of its own only if it waits for a throttle rule, for a loan,
// or for the limits that the status path shows.
//
// # When not to use it
//
// The WebAssembly filter cannot use this package: it has no access to the network and asks a
// bridge. See envoy-wasm/filter.
package front
