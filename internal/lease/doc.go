// SPDX-License-Identifier: Apache-2.0

// Package lease decides from units that were taken from a store in advance: the state machine of one counter on one node.
//
// # Promise
//
// Never over. Whatever the traffic, the number of nodes, the messages lost and the nodes killed, no more is used than the
// limit's algorithm allows. Five rules make that so:
//
//   - Units exist only after the store has granted them. A lost answer is a lost batch, never used and never given back.
//   - A unit's deadline counts from when the call was sent. It is used by then, and within the window it was charged in,
//     or not at all.
//   - A unit leaves the hand before it is given back, once, naming its charge. A give-back is never repeated.
//   - What is granted for requests that wait is theirs. It is given back when they are gone: only what the store leased,
//     and has paid for in a token bucket, is held.
//   - Nothing is admitted from an estimate. Rates only say how much to ask for: a wrong one costs calls.
//
// A [Counter] has no clock, goroutine, lock or I/O: it is told the time and says what to do. So Caddy's goroutines and
// a filter that may not block use the same one.
package lease
