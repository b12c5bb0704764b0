// SPDX-License-Identifier: Apache-2.0

// Package fleet lets the processes that count in one Redis know of each other. Each writes a short
// record of itself, which operators read: since when it runs, which policies are in force, what is
// wrong, how many requests each rule admitted and denied, and which clients it denied most.
//
// # Promise
//
// A record is at most [RecordBytesMax] long and expires after ten minutes without a heartbeat. It is
// written in the background every 5 to 10 seconds. No request waits for it, and a failure to write it
// has no effect on requests. The keys are none that a counter can have:
//
//	rl1:~node:{~fleet}:ID    a node's record, as JSON
//	rl1:~fleet:{~fleet}      a sorted set of the nodes by the time of their last heartbeat
//
// A record that cannot be read, or is of a later version, is left out and counted. At most [NodesMax]
// nodes are read, the latest first. The rights of the store are enough for both.
//
// # Price
//
// Five short commands for each heartbeat. In Redis, a node takes the length of its record, some 2 KB
// with 20 rules and 20 clients.
//
// # When not to use it
//
// To decide anything: records are some seconds old, and clients are counted approximately.
package fleet
