// SPDX-License-Identifier: Apache-2.0

// Package exchange reads requests and builds responses for the fronts that run in Envoy.
//
// # Promise
//
// The filter and the native module read the same values from the same headers, and answer a denied
// request with the same fields and the same body. [Request] holds the values that a policy reads.
// [Deny] builds the response to a denied request, and [Merge] the fields of any other response.
//
// # Price
//
// Reading a request costs a look-up in a map for each of its headers. It allocates nothing, unless a
// header that the policy reads has several lines. A denial allocates its list of headers and its
// body.
//
// # When not to use it
//
// A front outside of Envoy has its own types for headers, and net/http among them. It uses package
// response directly.
package exchange
