// SPDX-License-Identifier: Apache-2.0

// Package api serves the control plane's ledger over HTTP.
//
// # Promise
//
// Every answer conforms to the OpenAPI document at /openapi.json, which is generated from the types
// of this package. A caller sends a token, whose role determines what the caller may do. An error
// is a problem document (RFC 9457). An invalid write is answered 422 with the place, the value and
// the remedy, and changes nothing. A write whose If-Match does not name the present revision is
// answered 412. Lists are paged by key. A body has at most 64 KiB, unless it contains a policy or a
// batch. At most 64 requests are served at a time. At most half of these come from nodes, which
// send batches and read published policies. All callers within a second share one read of a
// published policy.
//
// A token is verified before the body is read. A caller without a valid token does not keep other
// callers from being served: a token that was not seen before is verified in a separate queue. In
// that queue, each address has a part of the places and a budget of invalid tokens.
//
// /healthz reports that the process is alive. /readyz reports whether the schema, the database and
// Redis are usable.
//
// # When not to use it
//
// Proxies with Redis do not use it: they read records and policies in Redis. Proxies without Redis
// read their policy here.
package api
