// SPDX-License-Identifier: Apache-2.0

// Package publish writes what the database says about clients to the directory in Redis.
//
// # Promise
//
// Of all processes over a database, one publishes: the one that holds an advisory lock. When it
// ends, another begins within seconds. A change is published at least once, and a client's record
// never goes back to an earlier one. What is written is the state of the rows, so writing it twice
// changes nothing. If Redis has lost its records, or was restored from a backup, all records are
// written again, with pauses as long as the writing, and the generation says when they are whole.
//
// Records that were in Redis before the first start are imported. From then on the rows are the
// truth: a record that something else has written is replaced within a [lookEvery].
//
// # Price
//
// The publisher has one connection to the database, and reads one key of Redis every two seconds.
package publish
