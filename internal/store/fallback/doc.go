// SPDX-License-Identifier: Apache-2.0

// Package fallback limits requests in this process while the shared store does not answer. The
// package applies to rules with on_error: allow and on_error: local.
//
// # Promise
//
// While the store does not answer, this process counts in its own memory, with the algorithm and
// the window of each limit. Under allow, it admits the whole limit, minus the usage that the store
// last reported to it. Under local, it admits its share: the limit divided by the number of nodes.
// The share starts unused. A request that fits into the whole limit also fits into the share, so a
// limit smaller than the number of nodes still admits requests. Under deny, the call fails. If one
// rule of a request has on_error: deny, the call fails regardless of the other rules.
//
// This process admits no more than the limit in a window, however late the store answers. From the
// first request that this process decides for a counter, the process keeps a tally in memory, which
// counts its own admissions and those of the store together. If the tally exceeds the limit, a
// request that the store admits is denied, because this process admitted units of which the store
// had no record. The tally lasts until the units of the last request that this process decided have
// expired. If the store has room even for those units, for example after a reset by another
// process, the store's answer is used. The package tallies up to 65,536 counters.
//
// When the store answers again, the first request for a counter begins with a charge of the units
// that this process admitted in the meantime. Only then does the store decide the request. So an
// outage gives a client no second allowance in this process. No request is charged twice: a call
// that was sent and not answered is not charged again, because the store might have executed it or
// might still execute it. A call was certainly not executed if its error, or an error that it
// wraps, has a method Unsent that returns true. Units of a window that has ended are not charged.
// The package remembers the uncharged units of at most 65,536 counters; a further counter displaces
// one with few units.
//
// Stores of one process over the same counters have the same [Counts]. So together they admit no
// more than the limit, and each store can charge a debt that another store has recorded. A process
// has several such stores because a front opens another store when its settings change.
//
// A store that has no memory for a call's new counters can still count the known ones. Its error
// has a method NewCounter, and this process then counts only the new counters.
//
// [Store.Corrections] corrects charges when the real cost is known, including those of requests
// that this process admitted. A higher cost that cannot be sent to the store is counted in memory
// and owed. A lower cost reduces the debt, or refunds its charge. Units of a call that was sent and
// not answered are not refunded, because the store might not have charged them.
//
// # Price
//
// There is no cost while the store answers. While it does not, a decision in memory takes about 0.3
// µs per limit. Under allow, every node admits the whole limit, so n nodes admit n times the limit
// in each window of an outage. Under local, the nodes together can exceed a limit by the units that
// were used before the outage. If the load is not spread evenly over the nodes, clients are denied
// early.
//
// # When not to use it
//
// Do not use it for limits that protect something from breaking; use on_error: deny instead. Do not
// use it over a store in memory, which always answers.
package fallback
