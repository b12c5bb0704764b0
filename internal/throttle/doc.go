// SPDX-License-Identifier: Apache-2.0

// Package throttle lines requests up that wait for a limit: first come, first served, a line for each counter.
//
// # Promise
//
// A ticket's turn comes when it is the first in every line it stands in. Tickets join all their lines in one step, so
// everywhere the older one is ahead: of those that stand in line the oldest always has its turn, and no two wait for each
// other. Who leaves, for whatever reason, frees every place at once. Lines and waiters are bounded; what is beyond is told
// to go away and never waits.
//
// Lines know no clock and no requests. [Wait] is what a front does with them: it decides a request under throttle rules, and
// takes units for those that wait in the order in which they came, none for those that have left.
//
// # Price
//
// With nobody in line a question is one atomic read. Otherwise one lock for all lines, held for as long as it takes to
// look up a key: about 0.1 µs. A ticket is about 250 bytes.
//
// # When not to use it
//
// To order the requests of several nodes: each has lines of its own, and among nodes nobody is first.
package throttle
