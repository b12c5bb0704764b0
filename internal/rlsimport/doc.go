// SPDX-License-Identifier: Apache-2.0

// Package rlsimport turns configurations of envoyproxy/ratelimit into a policy that decides the same behind
// internal/rls, and says what it could not carry over.
//
// There, a descriptor is looked up entry by entry in a tree: first the value as it is, then the first pattern that fits, whose
// stars may be anywhere, then the key without a value; what is found is not taken back, and only a limit at the depth of the descriptor counts.
// Here, each limit becomes a rule for descriptors of just its keys, and rules whose descriptors overlap become a group in
// that order, with rules that allow where a more specific entry leads nowhere.
//
// What differs is above all the charging, as internal/rls says it: a request that is refused charges nothing, there it
// charges all the same; and a counter that two descriptors of one request share (share_threshold) is charged once, there
// twice. Asked one descriptor at a time, one hit each, both decide alike: testdata/service has what the real service
// answered to the configurations that come with it, and real_test.go the list of what differs. What no policy can say is an
// error and no policy: patterns of keys, a quota of 0. What an underscore does there is not carried over: its keys and values are
// joined by one, so that key a_b is found for the key a with the value b, too.
//
// The price is a rule for each limit. When not: for limits that are meant to change, write a policy.
package rlsimport
