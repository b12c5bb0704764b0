// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps the records of clients and API keys as rows in PostgreSQL, with a history of
// all changes.
//
// # Promise
//
// A client's rows are equivalent to its record in the directory: a [directory.Record] that is
// written is read back equal, and so is the record of a key. Only the SHA-256 of a key is kept. A
// write that is not valid returns an [Invalid] and changes nothing. Each write is one transaction,
// with one [Change] for each client and key. The numbers of changes rise in the order of the
// commits, without gaps. A change is never altered. The hash of a change covers the previous
// change, so that [Ledger.Verify] finds changes that were altered, removed or added. Rows that are
// changed by SQL become changes when the publisher calls [Ledger.AdoptEdits].
//
// # Price
//
// Writes take turns, because each needs the hash of the previous one. A write costs one commit.
//
// # When not to use it
//
// Do not use it on the request path. Proxies read the directory in Redis, which package publish
// writes.
package ledger
