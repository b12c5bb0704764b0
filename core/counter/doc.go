// SPDX-License-Identifier: Apache-2.0

// Package counter decides what one counter allows. A store needs no other package for rate limits.
//
// # Promise
//
// [Decide] answers [Check]s from an instant and the [State] of their counters. It implements the
// four algorithms, calendar windows, leases, refunds and penalties. It is a pure function: all
// stores that keep the states and call it decide alike. A [Store] performs several checks in one
// atomic step. [ValidateChecks] defines the calls that a store may reject.
//
// # Price
//
// A decision takes about ten nanoseconds per check and allocates nothing. A counter takes at most
// one [Slot].
//
// # When not to use it
//
// To limit one function in one process, use golang.org/x/time/rate. To decide requests by rules,
// use package core, which creates the checks.
package counter
