// SPDX-License-Identifier: Apache-2.0

// Package directory keeps what operators say about clients: tiers, limits, blocks, exemptions. It also
// keeps API keys, by their SHA-256: their clients, tiers, limits, ends and revocations.
//
// # Promise
//
// A [Directory] answers from bounded memory. It reads the record of a client when the client is
// first seen, in one call together with the records of other new clients. A change holds in every
// process that shares the [Source] within a second, or within 36 seconds if the source cannot send
// changes. If the source does not answer, records stay in force as they were last read, and a client
// that was never seen has no record. If the source works and too many new clients wait to be read,
// their requests are denied, so that a flood of clients does not admit a blocked one. A part of a record that has an end loses its force at that
// instant. A record that cannot be read is counted, logged once, and has no force.
//
// A key is read as a client is, and the record of its client after it. A key that the source cannot tell
// of is not valid. Keys and clients do not evict each other. No record and no log holds a key.
//
// An [Editor] changes records. Concurrent changes are not lost, and each one leaves an entry in a
// bounded history.
//
// # Price
//
// A known client costs a lookup in memory, some 50 ns, no lock and no allocation. A client that is seen for
// the first time waits for one read of the source. A client that is remembered takes about 300
// bytes, and 640 with a record.
//
// # When not to use it
//
// For clients that are known beforehand and are few, a keys file or a list in the policy needs no
// Redis. A directory does not authenticate: it says what holds for a client that a credential or an
// address has identified.
package directory
