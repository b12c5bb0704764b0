// SPDX-License-Identifier: Apache-2.0

// Package validate finds the errors in a policy and describes them for its author.
//
// # Promise
//
// [Policy] reports all problems at once, each with its location, the value found there, the reason
// and a remedy. A part of a policy that has no effect is a problem too.
//
// # Price
//
// The package runs once per policy, in a fraction of a second for 10,000 rules. The package's
// messages are not linked into the filter.
//
// # When not to use it
//
// Outside of core, use core.Compile, which calls it. core.Compile itself checks whether too many
// limits can apply to a request.
package validate
