// SPDX-License-Identifier: Apache-2.0

// Package bridge is the small server between filters and the store: it verifies credentials, decides by the policy, and
// asks the store.
//
// # Promise
//
// A question is about a request and about a version of the policy; which limits that is under, their keys and their
// numbers are found here, so that nothing a caller writes can move them. The last few versions stay known, so that
// filters that have not heard of a new policy go on by theirs. One question that cannot be answered spoils no other.
// A policy file is followed, and one with an error is refused while the last good one stays.
//
// What remains to be done about a request when its response is known leaves the bridge as a receipt: sealed, good for ten
// minutes, redeemed once. Bridges that share a token open each other's; where they share a store as well, that counts which
// ones were given back, so that each is at one of them: a key of some 200 bytes for 24 minutes. One that is late, changed, of a policy that is forgotten, from before a restart, or beyond what is
// remembered changes nothing: what was reserved stands as the charge.
//
// Filters may take units of leased limits in advance, by the same plan, no more than a node's share, and give back what they did
// not use, by receipts of the same kind.
//
// A request under a throttle rule that has to wait does so in a call of its own, whose answer comes when it is admitted, or
// when it cannot be. Whoever waits stands in line, and nobody who only asks goes ahead.
//
// # Bounds
//
// What callers can make large is bounded, and what is beyond is answered: a call (1 MiB, 256 items: 413, 400), calls under
// way (503), calls that come and the bytes of all of them (503), the time that a call takes to come (408), questions under
// way and the time that looking at them takes (busy), settlements that wait (busy), requests that wait (refused), the reply
// (busy). People's JSON has the same bounds. A call is under way from when it has come whole until its reply is made: who
// sends slowly, or reads slowly, holds no place of others.
//
// # Price
//
// A question costs 1.7 times what a decision in a proxy does, and its share of a call over HTTP. The questions of a call
// are asked of the store at once, over Redis in one pipeline. A question under way holds 4 KB.
//
// # When not to use it
//
// As a way for applications to ask for decisions over the internet: whoever can reach it can spend anybody's allowance.
package bridge
