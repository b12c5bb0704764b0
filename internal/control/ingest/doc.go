// SPDX-License-Identifier: Apache-2.0

// Package ingest stores the batches of nodes in the database.
//
// # Promise
//
// A batch is in the tables once, or not at all, however often and from wherever it is sent: its
// feed and number are recorded in the same transaction. Usage is added up by client and day, and by
// minute, hour and day over all clients, in the same transaction. So the sums of all levels agree,
// even if a batch comes late.
//
// A batch has at most [feed.LinesMax] lines. Each text has at most 512 bytes, and no control
// characters. Anything else is an [Unreadable], and changes nothing. A time more than a minute
// ahead, or more than 30 days ago, is moved to that bound and counted: a node whose clock is wrong
// loses nothing.
//
// # When not to use it
//
// For the history of operators' changes, use package ledger.
package ingest
