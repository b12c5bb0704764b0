// SPDX-License-Identifier: Apache-2.0

// Package leasestore decides requests in this process without calling the shared store. It sits
// between a front and that store. It admits requests from units that it has leased in advance, and
// denies requests that the store would deny again.
//
// A lease is a number of units that the store has charged in advance. Units that are leased and not
// yet used are held by this process.
//
// # Promise: a limit is never exceeded
//
// Nothing is admitted that the store has not charged. Each counter of a limit that may be leased
// (Check.Lease) has the state machine of package lease. A request is admitted from held units,
// denied by the store's last answer, waits for the call that is under way, or makes one call for
// itself and all waiting requests. So a thousand concurrent misses are two calls. For a request
// under several limits, held units are reserved first. One call then asks for the rest, together
// with exact limits and log_only limits. If that call is denied or fails, the reserved units are
// put back. A request never waits while others wait for a call that it is about to make, so
// requests cannot deadlock.
//
// No request waits longer than Options.Timeout. After that it fails: with [counter.ErrOverloaded]
// if the store has answered a call that was sent later than the one it waits for, or any call in
// the second half of the wait, otherwise with [counter.ErrUnavailable]. If the call fails, the requests that wait for it fail too, except those
// that held units can admit. So waiting requests do not call a failed store again. A call is
// overdue if it takes four times as long as usual, and at least a tenth of the timeout. Then one of
// the waiting requests makes another call for all of them. So a call that hangs fails the request
// that made it, and seldom any other. If the store takes more than a third of the timeout to
// answer, no request waits for another's call.
//
// A unit is counted when it is reserved, as the store counts a unit when it decides. The request is
// admitted after the rest of its checks have been answered, at most one call later.
//
// Unused units are refunded when a counter has been idle, when its limit has changed, and by
// [Store.Close]. A refund is sent once. If the store does not answer, or the process dies, the
// units are lost until their window ends. That never exceeds a limit. Resetting a counter through
// this store discards the units held for it. If another process resets a counter, the units held
// here can be used beside the fresh allowance.
//
// # Promise: denied only as the store would deny
//
// A call is denied from memory only while the store would deny it. One of its checks was denied for
// the same or a smaller cost, by a limit with the same numbers, and its wait is not over. The
// answer is what the store would say: At + Wait and At + Reset stay the same instants. A denial is
// forgotten early when its wait may have become shorter. A reset or refund through this store takes
// effect at once. Leased units take effect at the time by which the store said they are used or
// refunded. Changes by other processes take effect within a second of the question ([DenialMax]). A
// penalty in force is remembered in the same way.
//
// By definition, a repeated denial during the wait of the same limit is the same violation. So a
// client's penalty misses no violation when the store does not see the repetition. A denial is
// remembered only if its violation was recorded, in the current record. A denial by a leased limit
// calls the store once to record it. If a second limit is exhausted too, its violation is recorded
// when the store is next called.
//
// # Promise: a burst is a few calls
//
// Of concurrent requests that take from one counter, the store sends at most one more than the
// counter may admit. The others wait in this process. They are denied from memory with the first
// one that the store denies, or sent while units are left. So a burst of one client, of any size,
// costs about as many calls as the limit admits requests, and calls of other clients do not queue
// behind it. At most 256 calls for a counter are under way. At most 16,384 requests wait for one
// counter and 65,536 in all, each for at most a second. Beyond these bounds a call fails with
// [counter.ErrOverloaded], which is not an outage and which the fronts deny. When a call fails
// because the store does not answer, the requests behind it fail too.
//
// # Price
//
// A denial from memory takes about 100 ns and a held unit 130 ns, without allocation: for each
// check, a hash of the key and a table lookup. Both tables are bounded. When they are full, the
// denial that ends first is forgotten, or a counter without held units. That costs a call and
// nothing else.
//
// If held units cover all limits of a request, the store assumes for 200 ms ([AbsenceMax]) that its
// client has no penalty. It checks for a penalty in the background from half of that time on. So a
// penalty that another process has imposed may take that long to apply here. Each call that the
// store makes for another reason asks about the penalty too. In a call denied from memory, a check
// that does not deny reports the store's last answer, at most a second old, or an unused counter.
//
// A refund of a leased unit of a token bucket is credited like any other, at the instant of its
// lease.
//
// # When not to use it
//
// Do not use it over a store in this process's memory: that store decides faster than this package.
package leasestore
