// SPDX-License-Identifier: Apache-2.0

// Package conformance reads the corpus in core/testdata/conformance and runs it against a front. A
// front is package core alone, the filter in an emulator, a Caddy or an Envoy.
//
// # Promise
//
// Every front gets the same requests under the same policies, and must give the same answers,
// including each header about limits. Such a header must be absent if no expectation names it.
// Where a front differs by design, the corpus states this next to the request, and the run logs it.
// Every front also gets a few stories with wrong expectations. If the front's answers satisfy one
// of these stories, the test fails.
//
// # Price
//
// The stories run one after the other. A front that is a server is started once for all stories.
//
// # When not to use it
//
// Use internal/test/storetest to examine a store. This package cannot test anything that needs a
// clock set by the test, because real servers take part. So the windows of the corpus are long, and
// times are only compared with bounds.
package conformance
