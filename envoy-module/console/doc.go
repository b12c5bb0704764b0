// SPDX-License-Identifier: Apache-2.0

// Package console serves operators and the scrapers of metrics in Envoy's process.
//
// # Promise
//
// A process has at most one console. Envoy may have several configurations of the filter, and makes
// the next one before it ends the one that it replaces. Each may claim the console. The latest
// claim that has not ended is in force: its address, its tokens, and its configuration. Claims with
// equal addresses share one listener, so an edit of another setting closes no connection. The
// listener is closed when the last claim ends.
//
// If another process has the address, as during a hot restart, the log names the address, and the
// console tries again each second. The front decides requests in the meantime. The address of the
// previous claim stays open and answers 503, so that a claim without a token serves nothing at an
// address that was claimed with one. Any other error of an address makes the claim fail.
//
// # Price
//
// A console takes one goroutine, and at most [connectionsMax] connections.
//
// # When not to use it
//
// Do not use the package in programs with one configuration, such as the bridge, which serve
// package operator themselves.
package console
