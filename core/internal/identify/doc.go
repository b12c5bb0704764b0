// SPDX-License-Identifier: Apache-2.0

// Package identify finds the client of a request: its address, its identity, and its entries in
// lists.
//
// # Promise
//
// An address is trusted only as far as the policy trusts the proxies that wrote it. A credential
// that two servers could read differently is malformed. A client gains nothing by omitting a
// credential. [List] finds a client's entry in a list.
//
// # Price
//
// The work is bounded for any request. After the buffers of a [Client] have grown, nothing is
// allocated.
//
// # When not to use it
//
// Outside of core, use core.Plan, which is its public API. A policy.Verifier decides whether a
// credential is valid.
package identify
