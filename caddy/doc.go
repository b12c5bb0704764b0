// SPDX-License-Identifier: Apache-2.0

// Package penstockcaddy limits requests in Caddy. The package provides the handler
// `http.handlers.penstock`, the app `penstock` for settings that all sites share, and the directive
// `penstock`.
//
// # Promise
//
// The handler decides a request by the app's policy and by the site's own rules in a single store
// call. The handler charges each rule once per request, even if the request passes the handler
// several times through rewrites, subroutes or error routes. Counters survive a reload. A store
// outage never causes a 5xx response unless the policy has on_error: deny.
//
// # Price
//
// Each request is decided once. The memory store does no I/O, and Redis costs one round trip. For
// an admitted request, the handler adds at most four allocations to Caddy's own.
//
// # When not to use it
//
// Do not use it to limit connections, bandwidth or time. Such limits belong to the server, not to
// requests.
//
// # Where to read
//
// serve.go decides a request, and throttle.go makes it wait if necessary. response_writer.go adds
// the header fields of an admitted request, and settlement.go corrects its charges when the
// response is known. denial_response.go and error_routes.go answer a denied request.
// request_record.go holds the per-request state.
//
// caddyfile.go, the other caddyfile files and json.go read a configuration. app.go and handler.go
// put the configuration into effect, with store.go, live_policy.go and live_watch.go. metrics.go,
// status_handler.go, shadow.go and the admin files report what happens.
package penstockcaddy
