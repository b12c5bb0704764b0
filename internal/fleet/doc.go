// SPDX-License-Identifier: Apache-2.0

// Package fleet lists the processes that count in one Redis. Each process writes a short record of
// itself for operators: when it started, which policies are in force, which problems it has, how
// many requests each rule admitted and denied, and which clients it denied most.
//
// # Promise
//
// A record is at most [RecordBytesMax] long and expires after ten minutes without a heartbeat. The
// record is written in the background every 5 to 10 seconds. No request waits for this, and a
// failure to write the record has no effect on requests. The keys are different from those of any
// counter:
//
//	rl1:~node:{~fleet}:ID    a node's record, as JSON
//	rl1:~fleet:{~fleet}      a sorted set of the nodes by the time of their last heartbeat
//	rl1:~follow:{~fleet}     a sorted set of the filters for events, by the time each ends
//	rl1:~events:{~fleet}:ID  a node's latest events, as JSON, only while somebody follows them
//
// [Follow] returns the latest events of all nodes. While its events are being followed, a node
// writes them once a second, at most [EventsBytesMax] bytes. A slow reader does not delay any node:
// it misses events, and gets their number.
//
// A record that cannot be read, or is of a later version, is left out and counted. The records of
// at most [NodesMax] nodes are read, those with the latest heartbeats first. Reading and writing
// need no more rights than the store.
//
// # Price
//
// A heartbeat is five short commands, and every two seconds a node makes one short command to learn
// whether events are being followed. In Redis, a node takes the length of its record, about 2 KB
// with 20 rules and 20 clients.
//
// # When not to use it
//
// Do not base decisions on it: records are some seconds old, and clients are counted approximately.
package fleet
