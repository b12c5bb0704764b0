// SPDX-License-Identifier: Apache-2.0

// Package operator serves an operator's requests to a running process. The package shows a client's
// remaining allowance, resets its counters and lifts its penalty.
//
// # Promise
//
// [Parse] parses a client that the operator names as KIND:ID. [Desk] finds the counters that a
// request of this client would use under every policy in force. Looking at counters charges
// nothing. A counter that several clients share is reset only if its rule is named.
//
// [API] answers the same requests in every front, over HTTP or within a program. Each answer is
// JSON. A malformed request is answered with a status from 400 to 422, and never causes a panic.
//
// # Price
//
// An operation makes one store call for every 64 counters of each policy.
//
// # When not to use it
//
// Do not use it on the request path, where identity must be verified, not asserted. A desk skips
// rules that count by a property that is not known of the client, such as a header.
package operator
