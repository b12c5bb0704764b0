// SPDX-License-Identifier: Apache-2.0

// Package live keeps a policy in force and replaces it when it is edited.
//
// # Promise
//
// A [Policy] has a current [Version] from [Open] until [Policy.Close]. As soon as the policy
// follows its [Source], each edit either becomes the current version completely or changes nothing.
// An edit is rejected if it cannot be read, compiled or admitted, or if it causes a panic. Requests
// finish with the version with which they began. Versions and policies with the same credential
// settings share their verifiers, so that keys are not fetched again after an edit of a limit.
//
// A source is a policy file, a policy that a control plane publishes in Redis, or anything else
// that loads a document and reports changes.
//
// # Price
//
// [Policy.Current] is one atomic load. An edit compiles the whole policy in the goroutine of the
// source, which takes about 50 µs for each rule.
//
// # When not to use it
//
// To check or explain a policy, load and compile it with policyfile instead.
package live
