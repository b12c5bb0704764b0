// SPDX-License-Identifier: Apache-2.0

// Package throttle lines requests up that wait for a limit: first come, first served, a line for each counter.
//
// # Promise
//
// A ticket stands in one line at a time, and everywhere ahead of those that came after it, also where it comes to stand
// later. Its turn comes when it is the first there. So whoever waits for a ticket came after it: of all in line the oldest
// always has its turn, and no two wait for each other. Who leaves, for whatever reason, frees the place at once. Lines and
// waiters are bounded; what is beyond is told to go away and waits no longer.
//
// Lines know no clock and no requests. [Wait] is what a front does with them: it decides a request under throttle rules, and
// takes units for those that wait in the order in which they came, none for those that have left. A request under several
// stands in the line of the counter that it has to wait for longest, so that those behind it have to wait for that one
// too. It asks for its units if nobody who came before stands in any of its lines, and goes to that line otherwise.
//
// That is no promise that a request under several gets them in order: refused by one counter at its turn for another, it goes to
// the one, and who needs the other only takes that unit. Where requests under each of two rules keep coming as fast as the limits
// allow, one that is under both may go back and forth until it is late. To keep both places would let a client's own limit, used up at
// another node meanwhile, hold the line of all.
//
// # Price
//
// With nobody in line a question is one atomic read. Otherwise one lock for all lines, held for as long as it takes to
// look up a key: about 0.1 µs. A ticket is about 200 bytes. When a request of a client's line has room there and has to
// wait for another counter, its whole line goes after it and comes back, each with two looks at lines and none at the store.
//
// # When not to use it
//
// To order the requests of several nodes: each has lines of its own, and among nodes nobody is first.
package throttle
