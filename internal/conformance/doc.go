// SPDX-License-Identifier: Apache-2.0

// Package conformance reads the corpus in core/testdata/conformance and puts it to a front: something that decides
// requests by a policy, be it core alone, the filter in an emulator, a Caddy or an Envoy.
//
// # Promise
//
// Every front is asked the same requests under the same policies and is held to the same answers, down to each header
// field that tells of limits: one that no expectation names must not be there. Where a front differs by design the corpus
// says so beside the request, and the run lists it. Every front is also told a few stories with wrong expectations, and
// fails if it agrees with one of them.
//
// # Price
//
// The corpus is read at once and its stories are told one after the other. A front that is a server is started once.
//
// # When not to use it
//
// To examine a store (that is internal/storetest), or anything whose clock has to be moved: real servers take part, so
// windows are long and times are told by bounds.
package conformance
