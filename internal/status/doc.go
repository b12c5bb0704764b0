// SPDX-License-Identifier: Apache-2.0

// Package status tells a client what is left of its own limits, in every front.
//
// # Promise
//
// The client is identified as by a check of the same request. Nothing is charged. Limits that are
// hidden from clients, or that count by something that the request lacks, are left out.
//
// # Price
//
// An answer takes one store call for each policy, for at most 64 counters. The shards of the last
// rule may need more calls.
//
// # When not to use it
//
// Do not use it for operators, who ask about a client by its name: see package operator.
package status
