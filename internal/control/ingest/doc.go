// SPDX-License-Identifier: Apache-2.0

// Package ingest stores the batches of nodes in the database.
//
// # Promise
//
// A batch is in the tables once, or not at all, however often and from wherever it is sent: its
// feed and number are recorded in the transaction that writes its lines. Usage is added up by
// client and day, and by minute, hour and day over all clients, in the same transaction. So the
// sums of all levels agree, even if a batch comes late.
//
// The times at which API keys were used are kept only for keys that are in the database, so a node
// cannot add rows for other keys.
//
// An invalid line of a batch does not affect the other lines. A line that no node would send is
// left out and counted. A text or a number that does not fit into a row is changed, and its line is
// counted. A time more than a minute ahead, or more than 30 days ago, is moved to that bound and
// counted: a node whose clock is wrong loses nothing. Each number of a row stops at ±2^56, so no
// sum overflows.
//
// A batch with more than [feed.LinesMax] lines or [feed.TextBytesMax] bytes is an [Unreadable] and
// changes nothing. The same holds for a batch of which no line can be read.
//
// # When not to use it
//
// For the history of operators' changes, use package ledger.
package ingest
