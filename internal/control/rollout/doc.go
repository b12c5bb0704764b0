// SPDX-License-Identifier: Apache-2.0

// Package rollout brings published policies to Redis, withdraws candidates that deny too much, and
// promotes others.
//
// # Promise
//
// Every process of a control plane does the same, without a lock. The texts that it writes depend
// only on the rows of the database. A text in Redis is replaced only if it has not changed since
// the process read it. A publication is written as soon as its commit is announced. Every two
// seconds the text in Redis is compared with the rows: a text that is missing, forged or older than
// the rows is replaced.
//
// While a candidate with a limit on its denials is in force on a share of the nodes, the requests
// and denials that these nodes report are read every two seconds. If the share of denials among the
// requests since the candidate came into force exceeds the bound, the candidate is withdrawn, which
// is a publication like any other. See [Share].
//
// A candidate that is to be promoted is published to all nodes when each region that serves the
// policy has observed it for the required time: see [ledger.Promotion]. The reports of the nodes
// are stored, so any process can continue where another one has stopped. Only one of several
// processes publishes the candidate, because the other processes then find a later generation of
// the policy.
//
// # Price
//
// Each region uses one connection to the database, and reads each published policy every two
// seconds, eight in a round trip. The denials of each region are compared with the bound
// separately, so a candidate is withdrawn from all regions if it denies too much in one. For a
// candidate that is to be promoted, each process writes a short row every two seconds, and the
// totals of the nodes, at most 1 MiB, when a node is new. For a share of the clients, it writes
// these totals every ten seconds.
//
// # When not to use it
//
// For the directory of clients, use package publish.
package rollout
