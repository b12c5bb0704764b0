// SPDX-License-Identifier: Apache-2.0

// Package exchange reads the requests and responses of Envoy, for the WebAssembly filter and for
// the native module.
//
// # Promise
//
// [Request] holds the values of a request that a policy reads. It takes them from the list of the
// request's headers. [Settling] holds what a settlement needs of a response. Package response
// makes the answer to a denied request.
//
// # Price
//
// Reading a request costs a look-up in a map for each of its headers. A request allocates nothing,
// unless a header that the policy reads has several lines. [Request.Own] reuses its memory. With
// this package, the filter is 5 KB larger than with code of its own.
//
// # When not to use it
//
// A front outside of Envoy has types of its own for headers, such as those of net/http.
package exchange
