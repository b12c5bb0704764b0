// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps what operators say about clients as rows in PostgreSQL, with every change.
//
// # Promise
//
// A client's rows and its record in the directory say the same: a [directory.Record] that is written
// is read back equal. A write that is not valid is an [Invalid] and changes nothing. Each write is
// one transaction with one [Change], whose number rises in the order of the commits and has no gaps.
// A change is never altered. Its hash covers the change before, so that [Ledger.Verify] finds an
// altered, missing or added one.
//
// # Price
//
// Writes take turns, because each needs the hash of the one before. A write costs one commit.
//
// # When not to use it
//
// On the way of a request: proxies read the directory in Redis, which package publish writes.
package ledger
