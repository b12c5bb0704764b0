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
//
// # Where to read
//
// A request is decided in serving.go; it may wait (waiting.go), is passed on with its fields (response.go) and settled when
// its response is known (settlement.go), or is refused (answer.go, errors.go). record.go is what is kept of it.
// A configuration is read by caddyfile.go, the block files and json.go, and set up by app.go and handler.go with store.go,
// verifiers.go and watch.go. The rest tells people: metrics.go, status.go, the admin files, shadow.go.
package penstockcaddy
