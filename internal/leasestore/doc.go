// SPDX-License-Identifier: Apache-2.0

// Package leasestore stands between a front and a store that other processes share, and answers from memory what the
// store need not be asked: refusals that it gave a moment ago.
//
// # Promise
//
// Nothing is admitted that the store has not charged.
//
// A call is refused from memory only while the store would refuse it: one of its checks was refused for this cost or a
// smaller one, by a limit of the same numbers, and its own wait is not over. The answer says what the store would say,
// its instants stay where they were. What shortens a wait ends the memory too: a reset or units given back through this
// store at once; units on lease, when the store said that they are spent or returned; and what other processes do, a
// second after the question at the latest ([DenialMax]). A penalty in force is remembered in the same way.
//
// A refusal during a limit's own wait is the same violation, by definition. So a client's penalty misses none when the
// store does not hear of it: a refusal counts as remembered only if that violation was recorded, in that record. The
// violation of a second limit that the call would find exhausted is recorded when the store is next asked.
//
// # Price
//
// A hash of the key and a look at a table for each check of a call, 100 ns together for a refusal from memory. The table
// is of a fixed size: where it is full, what ends first is forgotten, which costs a call and nothing else. Of a check that
// does not refuse, a refused call says what the store said last, within a second; or that its counter was never used.
//
// # When not to use it
//
// Not over a store in this process's memory: it decides in less time than is saved here.
package leasestore
