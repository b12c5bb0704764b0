// SPDX-License-Identifier: Apache-2.0

// Package region divides a limit among regions. A region decides requests from its own share of the
// limit, and the shares move to where the requests are. The package implements the state machine of
// one counter in one region.
//
// # Promise
//
// All regions together never exceed a limit, whatever the traffic and the number of regions. This
// holds even if messages are lost, repeated, late or out of order, if agents are killed or regions
// are lost, and if clocks are wrong. The whole limit can be used in any region. Four rules ensure
// that:
//
//   - At each reading of a clock, the shares of all regions add up to the limit or less. A region
//     admits what the counter's own algorithm admits under a limit of the region's share. All
//     algorithms are linear in the limit, so what the regions admit adds up to what one counter
//     admits.
//   - A region gives away units only if it could have admitted requests for them at that moment.
//     So what it has admitted fits in the share that is left.
//   - A [Transfer] states the reading of the sender's clock. The receiver uses the units only when
//     its own clock has reached that reading. So a wrong clock delays the use of units, and never
//     doubles them.
//   - A transfer is applied once. It is repeated until it is acknowledged, and its serial number
//     tells a repetition from a new transfer. A [Share], which includes the transfers not yet
//     acknowledged, must be stored before any message about it is sent.
//
// "Never exceeded" refers to the readings of the regions' clocks. If the clocks of two regions
// differ by a second, a window of one region ends a second later than that of the other.
//
// A [Share] must be durable: a region that loses it, or that restores an older one, breaks the
// promise. A region may forget a share that equals a new one, after the other regions have
// confirmed the transfers that were applied to it. An [Agent] consists of a share and of data that
// may be lost: rates, what it has learned of other regions, and waiting requests.
//
// # How shares move
//
// The whole limit of an unused counter belongs to its home, a region that is computed from the
// counter's key. The first request in another region waits for one message to the home and back.
// That region gets half of what the home has left. If only one region is used, it soon has all of
// the limit that it needs, and decides as exactly as one node would.
//
// A region whose units are about to run out asks the regions that have some. Each lender divides
// its units between itself and that region in proportion to their rates of requests. If no region
// has units, the asking region denies requests without asking again for a while. So a region asks
// about once per round trip and a half while units are scarce, and never while all requests come to
// one region.
//
// # Price
//
// A decision costs what counter.Decide costs and a few comparisons. An Agent takes about a
// kilobyte. The tests of this package print what is admitted, what waits and how many messages are
// sent:
//
//	make simulate-regions
//
// # When not to use it
//
// If all nodes reach one store within a millisecond or two, package lease is exact at a lower
// price. Calendar windows are not supported yet.
package region
