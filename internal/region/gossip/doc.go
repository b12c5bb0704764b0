// SPDX-License-Identifier: Apache-2.0

// Package gossip reports to each region what the other regions have counted, for rules with
// across: gossip.
//
// # Promise
//
// Each region decides by its own Redis and the whole limit. A counter there has the units that the
// region has counted itself, called its own units, and those that the other regions have reported
// so far. So a region admits a request only if its own units in the window, and the reported ones,
// leave room for the request. All regions together exceed a limit by at most what the other regions
// admit within the delay: the time from a request until its units have been charged in the other
// regions. While the regions reach each other, the delay is at most the sum of
// [regionstore.MarkEvery], an interval, and the time to report the earlier changes and then the
// change itself. Counters are reported in the order of their first change that has not been read.
//
// A message has a region's own units of a counter in a window. Their number only grows, except for
// refunds. In one atomic script, the receiver charges the units that it has not yet charged for
// that region and window. So messages may be lost, repeated, late and out of order, and two agents
// of a region do no harm. A report is never corrected downwards: if units are refunded after they
// were reported, the other regions count them until the window ends.
//
// A message is repeated until the other region has answered. An agent needs no state of its own:
// the counters that have changed are kept, in order, in a bounded set in the region's Redis. One
// agent of a region reports at a time, and another one takes over when the first is gone. An agent
// that takes over reports every counter in the set. It does the same if the other region's Redis
// has lost its data.
//
// # Bounds
//
// If another region reports more units of a counter than the limit, only as many as the limit are
// charged. A message has at most [pageMax] counters, which must belong to the policy's rules with
// across: gossip. The set has at most [regionstore.ChangedMax] counters.
//
// # Price
//
// For each other region, a counter that has changed costs two scripts: one to read the counter in
// its own region, and one to charge it in the other region. In a message, a counter takes about
// five bytes, and the part of its name that differs from the previous name.
//
// # When not to use it
//
// Do not use it for limits that must not be exceeded, nor for token buckets and logs, which have no
// windows.
package gossip
