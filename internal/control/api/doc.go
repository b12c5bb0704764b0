// SPDX-License-Identifier: Apache-2.0

// Package api serves the control plane's ledger over HTTP.
//
// # Promise
//
// Every answer is as the OpenAPI document at /openapi.json says, which is made from the types of this
// package. A caller shows a token, whose role says what it may do. An error is a problem document
// (RFC 9457). A write that is not valid is answered 422 with the place, the value and the remedy, and
// changes nothing. A write whose If-Match names another revision than the present one is answered
// 412. Lists are paged by key. A body has at most 64 KiB, and at most 64 requests are served at a
// time.
//
// /healthz says that the process lives. /readyz says whether the schema, the database and Redis are
// as this process needs them.
//
// # When not to use it
//
// A proxy never asks it: what applies is in Redis.
package api
