// SPDX-License-Identifier: Apache-2.0

// Package follow follows a policy that a control plane publishes, wherever its text comes from.
//
// # Promise
//
// A [Source] provides the policy of one signed text, which an [Origin] has. It learns of a change
// when the Origin announces it, or at the next look, when the Source reads the text. Looks are 30
// seconds apart, give or take 3. A Source accepts only texts that a trusted key has signed, and
// none that is older than its own. Each text whose policy comes into force is kept in a file. The
// next start uses the file if the origin does not answer, or has a text that is older than that of
// the file. A text that is rejected is reported once, and the policy in force stays in force.
//
// Package redispolicy has an Origin in Redis, and package httppolicy an Origin for nodes without
// Redis.
//
// # Price
//
// A look verifies and decodes the whole text, which takes about 100 ms for a policy of 10,000
// rules. No request waits for it.
//
// # When not to use it
//
// Do not use it without a control plane. Use a policy file then.
package follow
