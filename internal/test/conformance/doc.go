// SPDX-License-Identifier: Apache-2.0

// Package conformance reads the corpus in core/testdata/conformance and runs it against a front:
// core alone, the filter in an emulator, a Caddy or an Envoy.
//
// # Promise
//
// Every front gets the same requests under the same policies and must give the same answers,
// including each header about limits: a header that no expectation names must be absent. Where a
// front differs by design, the corpus states it next to the request, and the run lists it. Every
// front also gets a few stories with wrong expectations. If its answers satisfy one of them, the
// test fails.
//
// # Price
//
// The corpus is read once, and its stories run one after the other. A front that is a server is
// started once.
//
// # When not to use it
//
// To examine a store, use internal/test/storetest. The package cannot test anything that needs a
// clock set by the test: real servers take part, so windows are long and times are checked by
// bounds.
package conformance
