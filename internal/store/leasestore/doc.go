// SPDX-License-Identifier: Apache-2.0

// Package leasestore decides requests in this process without calling the shared store. The package
// sits between a front and that store. The package admits requests from units that it has leased in
// advance, and it denies requests that the store would only deny again.
//
// A lease is a number of units that the store has charged in advance. Units that are leased and not
// yet used are held by this process.
//
// # Promise: a limit is never exceeded
//
// Nothing is admitted that the store has not charged. Each counter of a limit that may be leased
// (Check.Lease) has the state machine of package lease. A request is admitted from held units, is
// denied by the store's last answer, waits for the call that is under way, or makes one call for
// itself and all waiting requests. So a thousand concurrent requests that find no held units cost
// two calls. For a request under several limits, held units are reserved first. A limit that is
// known to deny comes first, or else the limit that admits the fewest requests. So a burst of one
// client over its own limit takes no units of a larger limit that all clients share. One call then
// takes the remaining units, together with those of exact limits and log_only limits. If that call
// is denied or fails, the reserved units are put back. A request never waits while other requests
// wait for a call that it is about to make, so requests cannot deadlock.
//
// No request waits for another request's call longer than Options.WaitMax. After that it fails with
// [counter.ErrOverloaded], because a client can cause such a wait, for example by a burst on a busy
// machine. The error is [counter.ErrUnavailable] only if a call for the counter failed during the
// wait because the store did not answer. Even then it is ErrOverloaded if other answers show that
// the store works: one within the last half of the timeout, or one to a call that was sent after
// the call for the counter. If the call fails, the requests that wait for it fail too, except those
// that held units can admit. So waiting requests do not call a failed store again. A call is
// overdue if it takes four times as long as usual, and at least a tenth of the timeout. Then one of
// the waiting requests makes another call for all of them. So a call that hangs usually makes only
// its own request fail. If the store takes more than a third of the time for which a request may
// still wait, the request does not wait for another request's call.
//
// A unit counts from when it is reserved, just as the store counts a unit when it decides. The
// request is admitted after the rest of its checks have been answered, at most one call later.
//
// Unused units are refunded when a counter has been idle, when its limit has changed, and by
// [Store.Close]. A refund is sent once. If the store does not answer, or the process dies, the
// units are lost until their window ends. Lost units never cause a limit to be exceeded. Resetting
// a counter through this store discards the units held for it. If another process resets a counter,
// the units held in this process can be used in addition to the fresh allowance.
//
// # Promise: denied only as the store would deny
//
// A call is denied from memory only while the store would deny it: one of its checks was denied for
// the same or a smaller cost, by a limit with the same numbers, and the wait of that denial is not
// over. The answer equals that of the store: At + Wait and At + Reset remain the same instants. A
// denial is forgotten early if its wait might have become shorter. A reset or refund through this
// store takes effect at once. For units that another process has leased, the store reports when
// they will be used or refunded, and the denial is forgotten at that time. Changes by other
// processes take effect within a second of the call ([DenialMax]). A penalty in force is remembered
// in the same way.
//
// All denials by one limit during one wait are, by definition, one violation. The store records it
// with the first denial and does not need to see the other denials. So a denial that is a violation
// is answered from memory only after the store has recorded the violation, and no longer once the
// client's penalty is lifted. A denial by a leased limit costs one call to the store, which records
// the violation. If a second limit is exhausted too, its violation is recorded when the store is
// next called.
//
// # Promise: a burst is a few calls
//
// Of concurrent requests for one counter, this package sends to the shared store at most one more
// than the counter can admit. The others wait in this process. The waiting requests are sent while
// units are left, and are denied from memory as soon as the store denies one of them. So a burst of
// any size from one client costs about as many calls as the limit admits requests, and calls of
// other clients do not queue behind it. At most 256 calls for a counter are under way. At most
// 32,768 requests wait for one counter and 65,536 in all, 16,384 of them from one source, each for
// at most a second. Beyond these bounds a call fails with [counter.ErrOverloaded], which is not an
// outage; fronts deny such requests. When a call fails because the store does not answer, the
// requests behind it fail too.
//
// # Price
//
// A denial from memory takes about 100 ns, and an admission from held units 130 ns. Neither
// allocates: each check costs a hash of the key and a table lookup. Both tables are bounded. When a
// table is full, the denial that ends first, or a counter without held units, is dropped. That only
// costs a call.
//
// If held units cover all limits of a request, this package assumes for 200 ms ([AbsenceMax]) that
// its client has no penalty. After half of that time it checks for a penalty in the background. So
// a penalty that another process has imposed can take up to 200 ms to apply in this process. Each
// call that is made for another reason checks the penalty too. In a call denied from memory, a
// check that does not deny gets the store's last answer, which is at most a second old, or the
// answer of an unused counter.
//
// A refunded unit of a token bucket is credited at the instant of its charge. For a leased unit,
// that is the instant of the lease.
//
// # When not to use it
//
// Do not use it over a store in this process's memory: that store decides faster than this package.
package leasestore
