// SPDX-License-Identifier: Apache-2.0

// Package rlsimport converts configurations of envoyproxy/ratelimit into a policy that makes the
// same decisions in internal/envoy/rls, and reports what it could not convert.
//
// envoyproxy/ratelimit, called the service here, looks up a descriptor entry by entry in a tree.
// The service first tries the exact value, then the first pattern that matches, with stars at any
// position, and then the key without a value. The service does not backtrack, and only a limit at
// the depth of the descriptor applies. In the policy, each limit becomes a rule for descriptors
// with exactly its keys. Rules whose descriptors overlap become a group in the service's order.
// Where a more specific entry has no limit, an allow rule represents it.
//
// The main difference is charging, as internal/envoy/rls documents. A denied request charges
// nothing, whereas the service charges it too. A counter that two descriptors of one request share
// (share_threshold) is charged once, whereas the service charges it twice. For requests with one
// descriptor and one hit, the decisions are the same. testdata/service has the real service's
// answers to its own example configurations, and real_test.go lists the differences.
//
// If a policy cannot express a configuration, Import returns an error and no policy. This concerns
// patterns of keys, and a quota of 0. The service joins keys and values with underscores, so it
// cannot distinguish the key "a" that has the value "b" from the key "a_b". Import does not
// reproduce that.
//
// With [Sources], the policy is for proxies that see requests. Keys are then mapped to addresses,
// paths, methods, hosts, headers and attributes, and each rule is for all requests that have its
// entries.
//
// The price is one rule for each limit. If the limits are going to change, write a policy instead.
package rlsimport
