// SPDX-License-Identifier: Apache-2.0

// Package console serves operators and the scrapers of metrics in Envoy's process.
//
// # Promise
//
// A process has at most one console. Envoy may have several configurations of the filter, each of
// which may claim the console. To replace a configuration, Envoy makes the next one before it ends
// the previous one. The latest claim that has not ended is in force, with its address, its tokens,
// and its configuration. Claims with the same address share one listener, so an edit of another
// setting closes no connection. The listener is closed when the last claim ends.
//
// If another process has the address, as during a hot restart, the log names the address, and the
// console tries again each second. Meanwhile the front decides requests. The address of the
// previous claim stays open, but answers 503. Otherwise a claim without a token would serve
// operators at an address that was claimed with a token. Any other error of an address makes the
// claim fail.
//
// # Price
//
// A console takes one goroutine, and at most [connectionsMax] connections.
//
// # When not to use it
//
// Do not use the package in programs with only one configuration, such as the bridge. They can
// serve an [operator.API] directly.
package console
