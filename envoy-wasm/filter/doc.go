// SPDX-License-Identifier: Apache-2.0

// Package filter is the Envoy filter without Envoy: what it does at each step of a request, over a [Host] that does the
// rest. It decides by the same core as Caddy, and asks the bridge for what only a store knows.
//
// # Promise
//
// A request is identified and matched here. If all limits for it are leased and in hand, or one has refused it a moment ago, it is
// decided here, never over: by the machine of package lease. Otherwise, if a limit is for it, it waits for at most one call, which it
// may share with others: a worker has one call under way, and what arrives meanwhile rides in the next. Of requests for one counter few
// ride at a time, and a refusal of one is held against the others that wait (see gate). A call has a deadline from its sending. When the
// bridge does not answer in time, or not at all, on_error of the policy decides, and what it lets pass ends at the limit; no request
// waits longer than about three deadlines for a bridge that is away, and none is lost. What waits and what is remembered is bounded;
// what is beyond a bound is refused.
//
// # Price
//
// Where many requests arrive, each waits for the end of Envoy's turn, so that they are decided together: that costs half.
//
// A request that no limit is for costs reading its headers. One that is decided from the hand costs that and the decision, any
// other its part of a call to the bridge as well. A worker holds 1 MB of counters at most.
//
// Each MB of the compiled filter is a second of Envoy's start. Functions here and in package core that the compiler would write out
// at several places are marked noinline for that, where they are not worth it.
//
// # When not to use it
//
// Without the bridge: what the filter counts by, the bridge has given it.
//
// All of it runs on one goroutine, the worker's; nothing here is safe for concurrent use.
package filter
