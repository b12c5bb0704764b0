// SPDX-License-Identifier: Apache-2.0

// Package publish copies the clients' records from the database to the directory in Redis.
//
// # Promise
//
// Of all processes over a database, the one that holds an advisory lock publishes. Each region has
// a Redis, a publisher and a lock of its own, so a region that is cut off delays no other. When the
// process ends, another one takes over within seconds. A change is published at least once, and a
// client's record never returns to an earlier state. The publisher writes the current state of the
// rows, so writing it twice changes nothing. If Redis has lost its records, or was restored from a
// backup, all records are written again. After it has written a part of a page, the publisher
// pauses for half of the time that the writing took. If Redis answers reads late meanwhile, a pause
// is longer: at most four times as long as the writing. Once all records are in Redis, the
// publisher writes the generation, which tells nodes that the records are complete.
//
// Records that were in Redis before the first start are imported. From then on the rows are
// authoritative: a record that another program has written is replaced within about [lookEvery].
//
// The records of API keys and their names are published in the same way. What was changed by SQL is
// added to the history first. Rows that are not a valid record are not published: the record in
// Redis stays, and the table unpublished has the reason.
//
// # Price
//
// To write all records, a publisher reads a page of rows while it writes the previous page. If
// Redis was not empty, the publisher then reads the names of all its records, to remove those
// without rows.
//
// Each publisher has one connection to the database, and reads one key of Redis every two seconds.
// A page of changes needs four round trips to Redis, however many records it changes.
package publish
