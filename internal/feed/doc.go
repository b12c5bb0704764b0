// SPDX-License-Identifier: Apache-2.0

// Package feed sends events, and the usage of each client, to a control plane.
//
// # Promise
//
// Each batch is in a file of the spool before it is sent, and stays there until the control plane
// has answered that it is in the database. A batch has the identifier of its feed and a number. By
// these the control plane recognizes a batch that it already has, so it counts a batch once,
// however often it is sent. A process that ends or crashes leaves its batches to the next one with
// the same spool.
//
// Usage is written to the spool every [UsageEvery]: a process that is killed loses at most the
// usage of that time. Events are written every second, and are dropped with a count when the spool
// is nearly full. Usage may fill the whole spool. Further usage stays in the meter.
//
// When a request uses an API key of a directory, the key's SHA-256 is written within [UsageEvery],
// but at most once in ten minutes.
//
// Nothing that a client writes can make a control plane reject a batch: the texts of a line are
// escaped to fit into a row (see [Escape]), and a batch ends before it exceeds a bound.
//
// No request waits for this package.
//
// # Price
//
// The package writes one file a second while there are events, and one every [UsageEvery] while
// there is usage. The spool takes at most Options.BytesMax on the disk.
//
// # When not to use it
//
// Do not use it without a control plane. Package events can write events to a file.
package feed
