// SPDX-License-Identifier: Apache-2.0

// Package redispolicy publishes policies in Redis, and follows them there.
//
// # Promise
//
// A published policy is in the Redis of the counters, under a key that no counter can have, and its
// changes are told on a channel:
//
//	rl1:~policy:{~policy}:NAME    the signed text; see package published
//	rl1:~policies                 the names of policies that were published
//
// A [Source] follows one policy. It learns of a change by the channel, and by a look every 30 seconds,
// give or take a fifth. It takes only what a trusted key has signed, and nothing older than what it
// has. Each text whose policy comes into force is kept in a file. The next start uses the file if
// Redis is away, or has an older text.
//
// # Price
//
// A look reads the whole text, which is a few KB for a usual policy. A process needs the right
// [ReadPrivilege] besides those of the store.
//
// # When not to use it
//
// Without a control plane: follow a policy file.
package redispolicy

// ReadPrivilege is what the ACL user of a node needs, besides the rights of the store.
const ReadPrivilege = "&rl1:~policies +subscribe +unsubscribe"
