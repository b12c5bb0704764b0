// SPDX-License-Identifier: Apache-2.0

// Package rollout brings published policies to Redis, and withdraws candidates that deny too much.
//
// # Promise
//
// Every process of a control plane does the same, without a lock. The texts that it writes depend
// only on the rows, and it replaces a text in Redis only if that text has not changed since it was
// read. A publication is written as soon as its commit is announced. Every two seconds the text in
// Redis is compared with the rows: one that is missing, forged or older is replaced.
//
// While a candidate with a bound of denials is in force on a share of the nodes, the totals of
// these nodes are read every two seconds. If the share of denials among the requests since the
// candidate came into force exceeds the bound, the candidate is withdrawn, which is a publication
// like any other. See [Share].
//
// # Price
//
// Each region uses one connection to the database, and reads each published policy every two
// seconds, eight in a round trip. The denials in a region are compared with the bound by
// themselves, so a candidate is withdrawn from all regions if it denies too much in one.
//
// # When not to use it
//
// For the directory of clients, use package publish.
package rollout
