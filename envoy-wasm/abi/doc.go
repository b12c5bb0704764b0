// SPDX-License-Identifier: Apache-2.0

// Package abi connects a filter with Envoy: it calls Envoy's functions, and passes Envoy's
// callbacks to the filter. The package implements the part of version 0.2.0 of the Proxy-Wasm ABI
// that Penstock's filters use.
//
// # Promise
//
// Register announces the filter. Then each callback of Envoy is passed once, to the [Plugin] or
// [Stream] that it concerns. The package keeps no data that it returns, so the filter may keep such
// data. The package has no state for a stream or a plugin that Envoy has deleted.
//
// # Price
//
// The ABI's SDK for Go imports fmt and time. With the SDK, the filter would be 0.3 MB larger, and
// Envoy takes about a second to compile each MB. For each answer of Envoy, the package allocates
// the memory that Envoy asks for, and no more; the fields of a message are parts of that memory.
//
// # When not to use it
//
// A filter whose size does not matter should use the SDK, which covers the whole ABI.
package abi
