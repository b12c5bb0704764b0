// SPDX-License-Identifier: Apache-2.0

// Package wire is the compact form of what a filter asks the bridge, and of what it is answered.
//
// # Promise
//
// A call carries the questions of many requests, and each has its own answer: one that cannot be read, or is about an
// unknown policy, spoils no other. A question holds what the request looks like, as far as the policy reads it, and
// neither keys nor numbers of limits: those are the bridge's. What is written is read back alike; what was not written here
// is refused, without panic and without taking more memory than a small multiple of its length.
//
// The form has a version, the first byte after the head. A reader of another version refuses the call as a whole. Calls about
// leases, and replies to them, are of version 2, all others of version 1; a bridge that reads both says so in every reply
// ([LeasingHeader]), so that nobody sends version 2 to one that does not.
//
// # Price
//
// A question is some hundred bytes: the texts of the request, each with its length before it. Writing one allocates
// nothing once the buffer has grown; reading a call allocates its texts at once.
//
// # When not to use it
//
// By hand: the bridge takes and gives JSON as well.
package wire
