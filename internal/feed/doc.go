// SPDX-License-Identifier: Apache-2.0

// Package feed sends what happened in a process to a control plane: events, and what each client
// used.
//
// # Promise
//
// Each batch is in a file of the spool before it is sent, and stays there until the control plane
// has answered that it is in the database. A batch has the identifier of its feed and a number, by
// which the control plane takes it once, however often it is sent. A process that ends, also by a
// crash, leaves its batches to the next one with the same spool.
//
// Usage is written to the spool every [UsageEvery]: a process that is killed loses that much at most.
// Events are written every second, and are dropped with a count when the spool is nearly full. Usage
// may fill it to the end, and then stays in the meter.
//
// Nothing here is on the way of a request.
//
// # Price
//
// One file a second while there are events, and one every [UsageEvery] while there is usage. The spool
// takes at most Options.BytesMax on the disk.
//
// # When not to use it
//
// Without a control plane: package events writes events to a file.
package feed
