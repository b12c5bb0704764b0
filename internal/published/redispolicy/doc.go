// SPDX-License-Identifier: Apache-2.0

// Package redispolicy publishes policies in Redis, and follows them there.
//
// # Promise
//
// A published policy is in the Redis of the counters, under a key that no counter can have, and its
// changes are announced on a channel:
//
//	rl1:~policy:{~policy}:NAME    the signed text; see package published
//	rl1:~policies                 the names of policies that were published
//
// A [Source] follows one policy. A Source learns of a change from the channel, or from a look every
// 30 seconds, give or take a tenth. A Source accepts only texts that a trusted key has signed, and
// none that is older than its own. Each text whose policy comes into force is kept in a file. The
// next start uses the file if Redis does not answer, or has an older text.
//
// # Price
//
// A look reads the whole text, which is a few KB for a usual policy. A process needs the right
// [ReadPrivilege] besides those of the store.
//
// # When not to use it
//
// Without a control plane, follow a policy file.
package redispolicy

// ReadPrivilege is what the ACL user of a node needs, besides the rights of the store.
const ReadPrivilege = "&rl1:~policies +subscribe +unsubscribe"
