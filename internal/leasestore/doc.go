// SPDX-License-Identifier: Apache-2.0

// Package leasestore stands between a front and a store that other processes share, and answers what the store need not be
// asked: from units that were taken in advance, and from refusals that it gave a moment ago.
//
// # Promise: never over
//
// Nothing is admitted that the store has not charged. Of a limit that may be leased (Check.Lease) each counter has the
// state machine of package lease: a request is admitted from the hand, refused by what the store said, waits for the call
// that is under way, or makes the one call for all who wait; a thousand concurrent misses are two calls. Of a request under
// several limits, what is in hand is reserved and the rest is asked in one call, exact limits and log_only ones as they
// are; if that is refused or fails, what was reserved goes back. No request waits while others wait for what it is about to
// ask, so none wait for each other, and none waits longer than Options.Timeout. If the call fails, so do those who wait for
// it, but for what is in hand: a store that is away is not asked again by each of them. A call that takes four times as long as
// calls do, and a tenth of that time at least, is overdue: one of those who wait makes another one for all of them, so that
// one which hangs fails the request that made it, and hardly anybody else.
// Of a store that takes more than a third of that time to answer, nobody waits for another's call.
//
// A unit counts when it is reserved, as a request counts when the store decides: it is let through when what else is asked
// of it has been answered, up to a call later.
//
// What is not used goes back: when it was idle for a moment, when its limit was changed, and with [Store.Close]. It is sent
// once. If the store does not answer, or the process dies, it is lost to its window, which is never too much use of a
// limit. A counter that is reset through this store takes what is in hand with it; of a reset elsewhere what is in hand
// here is used beside the fresh allowance.
//
// # Promise: refused as the store would
//
// A call is refused from memory only while the store would refuse it: one of its checks was refused for this cost or a
// smaller one, by a limit of the same numbers, and its own wait is not over. The answer says what the store would say,
// its instants stay where they were. What shortens a wait ends the memory too: a reset or units given back through this
// store at once; units on lease, when the store said that they are spent or returned; and what other processes do, a
// second after the question at the latest ([DenialMax]). A penalty in force is remembered in the same way.
//
// A refusal during a limit's own wait is the same violation, by definition. So a client's penalty misses none when the
// store does not hear of it: a refusal counts as remembered only if that violation was recorded, in that record, and what
// a leased limit refuses here is asked once for the record's sake. The violation of a second limit that the call would find
// exhausted is recorded when the store is next asked.
//
// # Promise: a burst is a few calls
//
// Of the requests that take from one counter at the same time, no more are sent to the store than the
// counter may admit, and one. The others wait in this process, and are denied from memory with the first
// one that the store denies, or sent as units are left. A burst of one client, of any size, so costs the
// store about as many calls as the limit admits, and the calls of other clients do not queue behind it.
// At most 256 calls for a counter are under way, and at most 16,384 requests wait for one counter, 65,536
// in all, each for at most a second: beyond these bounds a call fails with [core.ErrOverloaded], which is
// not an outage and which the fronts deny. When a call fails because the store is away, the requests
// behind it fail with it.
//
// # Price
//
// About 100 ns for a refusal from memory and 130 ns for a unit in hand, without allocation: a hash of the key and a look at
// a table for each check. Both tables are bounded. Where there is no room, the refusal that ends first is forgotten, or a
// counter that holds nothing; that costs a call and nothing else. Where all limits of a request are in hand, that its client has no
// penalty is believed for 200 ms ([AbsenceMax]), and looked after in the background from half of that on: so long one that was
// imposed through another process may not be felt. What is asked of the store for any other reason asks for the penalty too.
// Of a check that does not refuse, a call refused from memory says what the
// store said last, within a second; or that its counter was never used.
//
// A refund of a leased unit of a token bucket is credited like any other, at the instant of its lease.
//
// # When not to use it
//
// Not over a store in this process's memory: it decides in less time than is saved here.
package leasestore
