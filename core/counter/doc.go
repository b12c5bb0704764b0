// SPDX-License-Identifier: Apache-2.0

// Package counter decides what one counter allows. A store needs no other package for rate limits.
//
// # Promise
//
// [Decide] answers [Check]s from an instant and the [State] of their counters. Decide implements
// the four algorithms, calendar windows, leases, refunds and penalties. Decide is a pure function,
// so all stores that call it make the same decisions. A [Store] performs several checks in one
// atomic step. [ValidateChecks] defines which calls a store can reject.
//
// # Price
//
// A decision takes about ten nanoseconds per check and allocates nothing. A counter takes no more
// memory than one [Slot].
//
// # When not to use it
//
// To limit one function in one process, use golang.org/x/time/rate. To decide requests by rules,
// use package core, which creates the checks.
package counter
