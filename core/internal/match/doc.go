// SPDX-License-Identifier: Apache-2.0

// Package match finds the rules of a policy that match a request.
//
// # Promise
//
// A [Request] is read once, in each way that known servers read a path, a host or an address. A
// [Matcher] returns the same conditions as a test of each one would, in a time that hardly grows
// with the number of rules.
//
// # Price
//
// Reading a request and finding three of 10,000 rules takes less than a microsecond and allocates
// nothing.
//
// # When not to use it
//
// Outside of core, use core.Ruleset, which is its public API. The package does not report errors in
// a policy; package validate does.
package match
