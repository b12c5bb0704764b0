// SPDX-License-Identifier: Apache-2.0

// Package wire encodes the calls that a filter sends to the bridge, and the bridge's replies, in a
// compact form.
//
// # Promise
//
// A call contains the questions of many requests, and each has its own answer. A question that
// cannot be read, or that refers to an unknown policy, does not affect any other. A question
// contains the values of the request that the policy reads. A call contains neither keys nor
// limits, because the bridge computes those itself.
//
// Every value that is written is read back unchanged. Other bytes are rejected, without a panic and
// without using more memory than a small multiple of their length.
//
// The format has a version, the first byte after the head. A reader of another version rejects the
// whole call. Calls about leases, and their replies, are of version 2; all others are of version 1.
// A bridge that reads both announces this in every reply ([LeasingHeader]), so version 2 is never
// sent to a bridge that reads only version 1. Records of clients are only in answers about policies
// with a directory. Filters that do not read records reject such a policy.
//
// # Price
//
// A question takes a few hundred bytes: the texts of the request, each preceded by its length.
// Writing a question allocates nothing after the buffer has grown; reading a call allocates all
// its texts at once.
//
// # When not to use it
//
// For calls by hand, use JSON, which the bridge also accepts and returns.
package wire
