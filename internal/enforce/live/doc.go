// SPDX-License-Identifier: Apache-2.0

// Package live keeps a policy in force and replaces it when it is edited.
//
// # Promise
//
// A [Policy] has a current [Version] from [Open] until [Policy.Close]. Once it follows its
// [Source], each edit either becomes the current version as a whole or changes nothing. An edit is
// rejected if it cannot be read, compiled or admitted, or if it causes a panic. Requests finish
// with the version that they began with. Versions and policies with the same credential settings
// share their verifiers, so that an edit of a limit does not fetch keys again.
//
// The source is a file today. It can be anything that loads a document and reports changes.
//
// # Price
//
// [Policy.Current] is one atomic load. An edit compiles the whole policy in the goroutine of the
// source, which takes about 50 µs for each rule.
//
// # When not to use it
//
// To check or explain a policy. Load and compile it with policyfile instead.
package live
