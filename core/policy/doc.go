// SPDX-License-Identifier: Apache-2.0

// Package policy defines the data of a policy: its rules, limits, defaults and ways to identify
// clients.
//
// # Promise
//
// Every default is a zero value, so a [Policy] contains what its author wrote and nothing else.
// [Attributes] is a request as a proxy sees it. A [Verifier] validates a credential and returns its
// [Identity]. A [Problem] describes an error in a policy and its location.
//
// # Price
//
// All types are plain values. core.Compile compiles them, once per policy.
//
// # When not to use it
//
// To read a policy from a file, use internal/policyfile, which also reports the line of each
// problem.
package policy
