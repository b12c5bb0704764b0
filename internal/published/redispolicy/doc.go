// SPDX-License-Identifier: Apache-2.0

// Package redispolicy publishes policies in Redis, and reads them there.
//
// # Promise
//
// A published policy is in the Redis of the counters, under a key that no counter can have, and its
// changes are announced on a channel:
//
//	rl1:~policy:{~policy}:NAME    the signed text; see package published
//	rl1:~policies                 the names of policies that were published
//
// An [Origin] has the text of one policy, for package follow, and announces its changes.
//
// # Price
//
// A look reads the whole text, which is a few KB for a usual policy. A process needs the right
// [ReadPrivilege] besides those of the store.
//
// # When not to use it
//
// Do not use it without a control plane. Use a policy file then.
package redispolicy

// ReadPrivilege is what the ACL user of a node needs, besides the rights of the store.
const ReadPrivilege = "&rl1:~policies +subscribe +unsubscribe"
