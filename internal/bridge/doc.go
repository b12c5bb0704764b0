// SPDX-License-Identifier: Apache-2.0

// Package bridge is the small server between filters and the store: it verifies credentials, decides by the policy, and
// asks the store.
//
// # Promise
//
// A question is about a request and about a version of the policy; which limits that is under, their keys and their
// numbers are found here, so that nothing a caller writes can move them. The last few versions stay known, so that
// filters that have not heard of a new policy go on by theirs. One question that cannot be answered spoils no other.
// A policy file is followed, and one with an error is refused while the last good one stays.
//
// # Price
//
// A question costs what a decision in a proxy does. The questions of a call are asked of the store at once.
//
// # When not to use it
//
// As a way for applications to ask for decisions over the internet: whoever can reach it can spend anybody's allowance.
package bridge
