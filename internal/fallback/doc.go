// SPDX-License-Identifier: Apache-2.0

// Package fallback bounds what a process lets through while the store that it shares with others is away,
// under on_error: allow and on_error: local.
//
// # Promise
//
// While the store does not answer, this process counts in its own memory, by the limit's own algorithm and
// window. Under allow it lets through the limit itself and no more, less what it lately heard from the store
// to be used. Under local it lets through its share: the limit over the number of nodes, from an unused
// share on. A request that fits into the whole limit fits into the share, so that a limit smaller than the
// number of nodes still admits requests. Under deny the call fails as before, also where other rules of the
// request say otherwise.
//
// When the store answers again, the first request for a counter charges there what was let through without
// it, before the store decides. So neither a short outage nor a single call that was late gives a client a
// second allowance at this process. Units of a window that has ended are not charged. The units of 65,536
// counters are remembered; those of more counters are not charged.
//
// # Price
//
// Nothing while the store answers; a decision in memory, some 0.3 µs for a limit, when it does not. Every
// node lets through the limit under allow, and so n nodes n times the limit for each window of an outage.
// Under local a limit may be exceeded by as much as had been used of it, and where the load is not spread
// evenly over the nodes clients are denied early.
//
// # When not to use it
//
// For limits that protect something that breaks: on_error: deny. Over a store in memory, which always answers.
package fallback
