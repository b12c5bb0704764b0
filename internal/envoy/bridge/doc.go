// SPDX-License-Identifier: Apache-2.0

// Package bridge is the server between filters in Envoy and the store. The package verifies
// credentials, decides by the policy, and calls the store.
//
// # Promise
//
// A question is about one request and one version of the policy. The bridge itself determines the
// limits, their keys and their numbers, so a caller cannot change them. The bridge keeps the last
// few versions, and those that were replaced within the last half minute. So filters that do not
// have the new policy yet can continue with the version that they have. A question that cannot be
// answered does not affect the other questions of its call. A policy file is followed. If an edit
// has an error, it is rejected and the last good policy stays in force.
//
// For work that remains until a request's response is known, the bridge gives the filter a receipt.
// A receipt is sealed, is valid for ten minutes, and can be redeemed once. Bridges that share a
// secret open each other's receipts. If the bridges share a store too, the store counts redeemed
// refunds, so that only one bridge makes each refund. The store keeps a key of about 200 bytes for
// each redeemed refund, for 24 minutes. A receipt has no effect if it was changed, if its version
// of the policy is no longer kept, or if the memory for redeemed receipts is full. The reserved
// units then stay charged. If a receipt has expired, or is older than the bridge's last start,
// nothing is refunded. A further charge is still made. Otherwise a client could avoid the charge by
// reading its response slowly.
//
// Filters may lease units of limits in advance, up to a node's share. Filters refund unused units
// with receipts of the same kind.
//
// Under a policy with directory: true, requests are decided with the records of clients. The bridge
// reads these from Redis and remembers them. The new clients of a call are read together. The
// questions of the call wait for these reads, for at most two timeouts of Redis. If too many
// clients are already waiting to be read, the questions are answered as busy. If Redis does not
// answer, new clients have no records. With keys: directory, API keys are read in the same way, and
// then their clients, for at most two more timeouts. If Redis does not answer, keys that were never
// read are invalid.
//
// A request that has to wait under a throttle rule, or for units of other regions, waits in a call
// of its own. The call is answered when the request is admitted, or when it cannot be admitted. A
// waiting request keeps its place in its queue, and no new request is admitted ahead of it. If the
// caller leaves, the request is not charged. If a call contains other questions, such a request is
// answered at once, and the filter asks again in a separate call.
//
// # Bounds
//
// Everything whose size a caller can choose is bounded. A call that is too large (1 MiB, 256 items)
// is answered 413 or 400. A call is answered 503 if too many calls are being decided, if too many
// are being received, or if all calls together have too many bytes. A call that is received too
// slowly is answered 408. Questions are answered as busy if there are too many at once, if
// verification takes too long, if too many settlements are queued, or if the reply would be too
// large. Questions of a filter's call are also answered as busy if the store has not answered them
// after 0.8 s. Too many waiting requests are denied. The JSON API has the same bounds, except the
// 0.8 s. Calls in JSON from one client's address may occupy at most half of the places for calls. A
// call occupies a place from the time at which it has been received until its reply is built. So a
// caller that sends or reads slowly does not take a place from other callers.
//
// # Price
//
// A question costs 1.7 times as much as a decision within a proxy, plus its share of a call over
// HTTP. The questions of a call go to the store together. Redis gets them in one pipeline. Each
// question that is being decided uses 4 KB.
//
// # When not to use it
//
// Do not use the bridge for applications that ask for decisions over the internet: any caller that
// reaches the bridge can use up any client's limit.
package bridge
