// SPDX-License-Identifier: Apache-2.0

// Package rlsimport turns configurations of envoyproxy/ratelimit into a policy that decides the same behind
// internal/rls, and says what it could not carry over.
//
// There, a descriptor is looked up entry by entry in a tree: first the value as it is, then the first pattern that fits,
// then the key without a value; what is found is not taken back, and only a limit at the depth of the descriptor counts.
// Here, each limit becomes a rule for descriptors of just its keys, and rules whose descriptors overlap become a group in
// that order, with rules that allow where a more specific entry leads nowhere.
//
// The price is a rule for each limit. When not: for limits that are meant to change, write a policy.
package rlsimport
