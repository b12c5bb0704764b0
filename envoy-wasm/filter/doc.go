// SPDX-License-Identifier: Apache-2.0

// Package filter is the logic of the Envoy filter, independent of Envoy. The package handles each
// step of a request, and calls Envoy through a [Host]. The package uses the same package core as
// Caddy, and calls the bridge for everything that needs a store.
//
// # Promise
//
// The filter identifies and matches each request. If the filter holds leased units for all limits
// of the request, or if one of the limits has just denied a similar request, the filter decides the
// request itself with package lease. The limits are never exceeded. Any other request with a limit
// waits for a call to the bridge. Usually, a worker has one call under way, and requests that
// arrive in the meantime share the next one. Only a few requests for one counter share a call, and
// a denial of one of them applies to the other requests that wait (see gate).
//
// For a policy with a directory of clients, the bridge sends the records of a request's client. The
// filter uses them for half a second, and then asks the bridge again, even if it could decide from
// memory. The same holds for the bridge's verdict on a credential, which may be a key of the
// directory. So a block and a revocation take effect within a second. While the bridge is down, old
// records decide.
//
// Each call has a deadline, after which the next call is made. If the bridge answers nothing for a
// second, or for the deadline if that is longer, on_error of the policy decides, and requests that
// it lets through are still limited. If the bridge is down, no request waits much longer than
// 1.5 seconds or three deadlines, whichever is more, and no request is lost. All queues and caches
// are bounded; requests beyond a bound are denied.
//
// # Price
//
// Under load each request waits for the end of an iteration of Envoy's event loop, called a turn
// here, so that requests are decided together, at half the cost.
//
// For a request without a limit, the only cost is reading its headers. A request that
// the filter decides itself also costs the decision, and any other request costs its share of a
// call to the bridge. A worker holds at most 1 MB of counters.
//
// Each MB of the compiled filter adds a second to Envoy's start. Therefore, functions here and in
// package core that the compiler would inline in several places are marked noinline where inlining
// is not worth its size.
//
// # When not to use it
//
// The filter cannot be used without the bridge, which has access to the counters.
//
// Everything here runs on the worker's only goroutine. Nothing is safe for concurrent use.
package filter
