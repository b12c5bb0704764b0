// SPDX-License-Identifier: Apache-2.0

// Package filter is the Envoy filter without Envoy. It handles each step of a request, and reaches
// Envoy through a [Host]. It decides with the same core as Caddy, and asks the bridge for facts
// that only a store has.
//
// # Promise
//
// The filter identifies and matches each request. If it holds leased units for all limits of the
// request, or if one of the limits denied it a moment ago, it decides the request itself with
// package lease, and the limits are never exceeded. Otherwise a request with a limit waits for at
// most one call, which it may share with others: a worker has one call under way, and requests that
// arrive meanwhile share the next. Only a few requests for one counter share a call, and a denial
// of one applies to the others that wait (see gate).
//
// For a policy with a directory of clients, the bridge sends the records of a request's client. The
// filter decides by them itself for half a second, and then asks again, whatever it remembers. So a
// block holds within a second. Without the bridge, old records decide.
//
// Each call has a deadline. If the bridge does not answer in time, on_error of the policy decides,
// and requests that it lets through still end at the limit. No request waits longer than about
// three deadlines for a bridge that is down, and none is lost. All queues and caches are bounded;
// requests beyond a bound are denied.
//
// # Price
//
// Under load each request waits for the end of Envoy's turn, so that requests are decided together,
// at half the cost.
//
// A request without a limit costs the reading of its headers. A request that is decided from leased
// units adds the decision; any other request also adds its share of a call to the bridge. A worker
// holds at most 1 MB of counters.
//
// Each MB of the compiled filter adds a second to Envoy's start. Functions here and in package core
// that the compiler would inline at several places are therefore marked noinline where inlining
// does not pay.
//
// # When not to use it
//
// Without the bridge: the filter gets its counts from it.
//
// Everything here runs on one goroutine, that of the worker. Nothing is safe for concurrent use.
package filter
