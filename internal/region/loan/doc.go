// SPDX-License-Identifier: Apache-2.0

// Package loan moves units of a limit between the counters of two regions, within one window.
//
// # Promise
//
// Each region has a part of the limit, and the parts add up to it. A loan is charged to the
// lender's counter first, as a request would be, and then restored to the borrower's counter, as a
// refund would be. So at each moment, what all regions have admitted in a window, and what they can
// still admit in it, add up to the limit or less, whatever messages are lost:
//
//   - The lender charges no more than its part leaves. A repeated question is charged again.
//   - The borrower restores a loan once, and no more than it has counted. A loan that arrives after
//     the borrower's deadline, or not at all, is lost until its window ends.
//   - The lender takes back only what it has lent a short time ago, and each loan once.
//   - The receipt of the charge names the window by its beginning. The borrower restores the units
//     in that window only. If the clocks of the regions differ, a loan may be lost, but it never
//     counts in another window.
//
// A region that hardly uses a counter lends at once all units that its own requests will probably
// not use until the window ends. The borrower's agent holds the units that the borrower's counter
// cannot take yet. In a sliding window of at most a minute, most of these units become available
// only while the weight of the previous window decreases. The lender charges them at once, beyond
// what is available, so its counter then admits nothing. The borrower restores each of them no
// earlier than the lender's counter could have admitted a request for it. If the lender needs units
// after all, it recalls what is still held.
//
// Regions whose policies divide limits differently lend each other nothing. So while the shares
// change, no region admits more than the larger of its old part and its new part.
//
// If a region was written off, another one, its steward, also lends the region's part, and has
// counters of its own for that. Package writeoff ensures that the two never use the part in the
// same window.
//
// An agent keeps nothing that must survive it. Returned units are lost until their window ends if
// the agent that lent them was restarted, or if they are returned to another agent of its region.
// The units that a killed agent held are lost as well. They are at most a twentieth of the limit if
// the window is longer than a minute. If a region has two agents, they ask for more units than one
// would, but the promise holds.
//
// In a sliding window, lent units still count in the next window, at the lender, although requests
// of the borrower used them. Each region on its own rounds down what it counts of the previous
// window. So with n regions, the weighted sum over all regions can exceed the limit by less than
// n-1 units. What is admitted in an aligned window cannot exceed the limit.
//
// # Price
//
// If the units of a region have run out, its requests wait for a loan where the front allows it.
// Elsewhere they are denied, although other regions have units. After the other regions had too few
// units, requests do not wait: they are denied at once for a twentieth of the window, but at most
// for two seconds. Meanwhile the agent asks in the background. A loan costs one call of the
// lender's Redis, one of the borrower's, and a round trip between the regions. While requests wait
// for a loan, the loan is restored in parts, because a counter takes no more units than it has
// counted. Each part costs a call, and a message to the proxies.
//
// # When not to use it
//
// Do not use it for limits that one request can use up, such as 1/1d: a region has no unit to begin
// with. Do not use it for token buckets and logs, which have no windows.
package loan
