// SPDX-License-Identifier: Apache-2.0

// Package lease decides from units that were taken from a store in advance: the state machine of one counter on one node.
//
// # Promise
//
// Never over. Whatever the traffic, the number of nodes, the messages lost and the nodes killed, no more is used than the
// limit's algorithm allows. Five rules make that so:
//
//   - Units exist only after the store has granted them. A lost answer is a lost batch, never used and never given back.
//   - A unit's deadline counts from when the call was sent. It is used by then, and within the window it was charged in,
//     or not at all.
//   - A unit leaves the hand before it is given back, once, naming its charge. A give-back is never repeated.
//   - What is granted for requests that wait is theirs. It is given back when they are gone: only what the store leased,
//     and has paid for in a token bucket, is held.
//   - Nothing is admitted from an estimate. Rates only say how much to ask for: a wrong one costs calls.
//
// The request that asks is decided by the store's answer, as it would be without a lease; it alone may be let through after
// the window it was charged in, if the answer came so late.
//
// A [Counter] has no clock, goroutine, lock or I/O: it is told the time and says what to do. So Caddy's goroutines and
// a filter that may not block use the same one.
//
// # Price
//
// A request from the hand takes 5 to 35 ns, by how busy the machine is, and allocates nothing; a counter is 448 bytes. Of
// twenty nodes, half a millisecond away from the store, under a limit of 10,000 a second, the model of this package's tests
// measures
//
//	demand        messages for each decision   admitted less than   Jain     decided at once
//	              (give-backs among them)      asking every time
//	0.95  fixed   0.03                         0.00 %               1.000    99 %
//	      sliding 0.10                         0.00 %               1.000    99 %
//	      bucket  0.10                         0.00 %               1.000    99 %
//	2     fixed   0.02                         0.00 %               0.999    99 %
//	      sliding 0.05                         0.1 %                0.999    95 %
//	      bucket  0.05                         1.3 %                0.999    95 %
//	10    fixed   0.004                        0.00 %               0.999    99 %
//	      sliding 0.009                        0.00 %               0.999    97 %
//	      bucket  0.011                        0.8 %                0.998    97 %
//	0.02  (cold)  0.94                         0.00 %               1.000    31 %
//
// Demand is in times the limit. What a bucket loses is that units wait in it for the age of leases, a twentieth of its
// burst at most. Up to a quarter of such a limit was in hand at once, under a steady load a twelfth: that much other nodes
// may be refused for as long as a lease lasts, a quarter of a second as a rule.
//
// A limit that lives from what flows in is asked by each node about once in a fiftieth of its window, from 5 to 50 ms; in
// between what the node did not get is refused. So its calls do not grow with the demand: two nodes under a limit of 10,000 a
// second make a call for each 190 requests at twice the limit, and for each thousand at ten times. Barely over the limit, at
// 1.1 times, a sliding window loses 1 %: what flows in at its end finds nobody who wants it by then.
//
// # When not to use it
//
// For counters of fewer than twenty requests a second on a node: they are not leased, and each asks, as without this
// package. Bursts of a few with pauses of 100 ms and more look like more than that while they last: what was taken for the
// next goes back, and three requests 30 ms apart can make four calls. For a sliding log, whose units would have to count
// until a window after their use. For a counter that is under several limits by turns: each request then makes its own call.
package lease
