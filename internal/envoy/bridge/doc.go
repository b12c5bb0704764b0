// SPDX-License-Identifier: Apache-2.0

// Package bridge is the server between filters in Envoy and the store. It verifies credentials,
// decides by the policy, and calls the store.
//
// # Promise
//
// A question is about one request and one version of the policy. The bridge itself finds the
// limits, their keys and their numbers, so a caller cannot change them. The last few versions stay
// known, and those replaced within half a minute. So filters that do not have a new policy yet
// continue with theirs. A question that cannot be answered does not affect the others of its call.
// A policy file is followed. If an edit has an error, it is rejected and the last good policy stays
// in force.
//
// Work that remains until a request's response is known leaves the bridge as a receipt. A receipt
// is sealed, good for ten minutes, and redeemed once. Bridges that share a secret open each other's
// receipts. If they share a store too, the store counts redeemed refunds, so that each is redeemed
// at one bridge. That takes a key of some 200 bytes for 24 minutes. A receipt has no effect if it
// is late or changed, or if the policy is forgotten. The same holds for a receipt from before a
// restart or beyond the bounds of memory. Then the reserved units stay charged.
//
// Filters may lease units of limits in advance, by the same plan, at most a node's share. They
// refund unused units by receipts of the same kind.
//
// A policy with directory: true is decided with the records of clients, which the bridge reads from
// Redis and remembers. The new clients of a call are read together, and its questions wait for that,
// two timeouts of Redis at most. If they cannot be read because too many wait, the questions about
// them are answered busy. If Redis is away, they have no records. With keys: directory, API keys are
// read in the same way, and then their clients, for two more timeouts at most. If Redis is away, keys
// that were never read are invalid.
//
// A request that has to wait under a throttle rule waits in a call of its own. The call is answered
// when the request is admitted, or cannot be. A waiting request keeps its place in the throttle
// queue, and no new request is admitted ahead of it.
//
// # Bounds
//
// Everything that a caller can make large is bounded, and each excess has an answer: for the size
// of a call (1 MiB, 256 items), 413 and 400; for calls under way, 503; for calls being received and
// their bytes, 503; for the time to receive a call, 408; for questions under way and their
// verification time, busy; for queued settlements, busy; for waiting requests, a denial; for the
// size of the reply, busy. The JSON API has the same bounds. A call is under way from when it has
// been received until its reply is made. So a caller that sends or reads slowly takes no place from
// others.
//
// # Price
//
// A question costs 1.7 times a decision in a proxy, plus its share of a call over HTTP. The
// questions of a call go to the store together, over Redis in one pipeline. A question under way
// holds 4 KB.
//
// # When not to use it
//
// Do not use it for applications that ask for decisions over the internet: any caller that reaches
// the bridge can use up any client's limit.
package bridge
