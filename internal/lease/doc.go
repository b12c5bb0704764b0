// SPDX-License-Identifier: Apache-2.0

// Package lease decides requests from units that were taken from a store in advance. A lease is a
// number of units taken in this way, which one node may use until a deadline. The package is the
// state machine of one counter on one node.
//
// # Promise
//
// Limits are never exceeded, whatever the traffic and the number of nodes, even if messages are
// lost and nodes are killed. Five rules ensure that:
//
//   - Units exist only after the store has granted them. If an answer is lost, its units are
//     neither used nor refunded.
//   - A unit's deadline counts from when the call was sent. The unit is used before the deadline
//     and within the window in which it was charged, or not at all.
//   - A unit is removed from the node's held units before it is refunded. It is refunded once, to
//     the charge that it came from. A refund is never repeated.
//   - Units granted for waiting requests belong to them, and are refunded when those requests are
//     gone. Only units that the store leased are held, because a token bucket reserves capacity for
//     the time of the lease.
//   - No request is admitted from an estimate. Estimated rates only determine how many units to
//     request, so a wrong rate only costs calls.
//
// The request that makes the call is decided by the store's answer, as it would be without a lease.
// If the answer comes after the window has ended, only that request is still admitted.
//
// A [Counter] has no clock, goroutine, lock or I/O: the caller passes in the time and carries out
// the verdict. So Caddy's goroutines and a filter that must not block use the same code.
//
// # Price
//
// A request decided from held units takes 5 to 35 ns, depending on how busy the machine is, and
// allocates nothing; a Counter is 448 bytes. The tests of this package simulate twenty nodes that
// share a limit of 10,000 per second. A message to the store takes half a millisecond. Results:
//
//	demand        messages per decision    fewer admitted than   Jain     decided at once
//	              (refunds included)       without leases
//	0.95  fixed   0.03                     0.00 %                1.000    99 %
//	      sliding 0.10                     0.00 %                1.000    99 %
//	      bucket  0.10                     0.00 %                1.000    99 %
//	2     fixed   0.02                     0.00 %                0.999    99 %
//	      sliding 0.05                     0.1 %                 0.999    95 %
//	      bucket  0.05                     1.3 %                 0.999    95 %
//	10    fixed   0.004                    0.00 %                0.999    99 %
//	      sliding 0.009                    0.00 %                0.999    97 %
//	      bucket  0.011                    0.8 %                 0.998    97 %
//	0.02  (cold)  0.94                     0.00 %                1.000    31 %
//
// Demand is given in multiples of the limit. Jain is the fairness index over nodes: 1 means that
// every node got the same fraction of its demand. A token bucket loses requests because it reserves
// capacity, at most a twentieth of its burst, for as long as units are leased. Up to a quarter of a
// bucket's limit was held at once, and a twelfth under a steady load. Other nodes cannot get those
// units for as long as a lease lasts, usually a quarter of a second.
//
// While the store is nearly empty, each node calls it about once in a fiftieth of the limit's
// window, every 5 to 50 ms, and denies requests in between. So the number of calls does not grow
// with demand. Two nodes under a limit of 10,000 per second make one call per 190 requests at twice
// the limit, and one per thousand at ten times the limit. Just over the limit, at 1.1 times, a
// sliding window admits 1 % less than without leases, because units that become available near its
// end are not used in time.
//
// # When not to use it
//
// Counters with fewer than twenty requests a second on a node are not leased, and each of their
// requests calls the store, as without this package. A counter whose requests come in groups of a
// few, with pauses of 100 ms or more between the groups, appears busier than it is. Units taken for
// the next request are then refunded, and three requests 30 ms apart can cause four calls.
//
// A sliding log cannot be leased, because its units would have to count until one window's length
// after their use.
//
// If the requests for a counter alternate between limits, each request makes its own call.
package lease
