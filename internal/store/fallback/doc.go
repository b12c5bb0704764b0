// SPDX-License-Identifier: Apache-2.0

// Package fallback limits requests in this process while the shared store does not answer. It
// applies to rules with on_error: allow and on_error: local.
//
// # Promise
//
// While the store does not answer, this process counts in its own memory, with the algorithm and
// the window of each limit. Under allow, it admits the whole limit, less the use that the store
// last reported to it. Under local, it admits its share: the limit divided by the number of nodes.
// The share starts unused. A request that fits into the whole limit also fits into the share, so a
// limit smaller than the number of nodes still admits requests. Under deny, the call fails. If one
// rule of a request says deny, the call fails whatever the other rules say.
//
// This process admits no more than the limit in a window, whatever the store answers late. From the
// first request that this process decides, it tallies a counter: it counts its own
// admissions and those of the store together, in memory. An answer of the store is a denial if the
// limit is used up there, because this process admitted units that the store did not know of. The
// tally lasts until the units of the last request that this process decided are gone. If the store
// has room for all of them as well, after a reset by another process for example, its answer
// stands. The package tallies up to 65,536 counters.
//
// When the store answers again, the first request for a counter charges there the units that this
// process admitted without it, before the store decides. So an outage gives a client no second
// allowance in this process. No request is charged twice: a call that was sent and not answered is
// not charged again, because the store may have executed it or may execute it later. A call was
// certainly not executed if its error, or an error that it wraps, has a method Unsent that returns
// true. Units of a window that has ended are not charged. The package remembers such units for
// 65,536 counters; units of further counters are not charged.
//
// [Store.Corrections] corrects charges when the real cost is known, also those of requests that this
// process admitted. A higher cost that the store cannot take is counted in memory and owed. A lower
// cost reduces the debt, or refunds its charge. Units of a call that was sent and not answered are
// not refunded, because the store may not have charged them.
//
// # Price
//
// Nothing while the store answers. While it does not, a decision in memory takes some 0.3 µs for
// each limit. Under allow, every node admits the whole limit, so n nodes admit n times the limit in
// each window of an outage. Under local, the nodes together may exceed a limit by the units that were
// used before the outage. Where load is not spread evenly over the nodes, clients are denied early.
//
// # When not to use it
//
// Do not use it for limits that protect something from breaking: choose on_error: deny. Do not use
// it over a store in memory, which always answers.
package fallback
