// SPDX-License-Identifier: Apache-2.0

// Package penstockcaddy limits requests in Caddy: the handler `http.handlers.penstock`, the app `penstock` for what
// sites share, and the directive `penstock`.
//
// # Promise
//
// A request is decided by the policy of the app and by its site's own rules in one step of the store, and charged for
// each rule once, however often it passes the handler (rewrites, subroutes, error routes). Counters outlive a reload.
// A store that does not answer never makes a 5xx unless the policy says deny.
//
// # Price
//
// One decision per request: with memory no I/O, with Redis one round trip. Two allocations on top of Caddy's own.
//
// # When not to use it
//
// To limit connections, bandwidth or time: those are limits of the server, not of requests.
package penstockcaddy
