// SPDX-License-Identifier: Apache-2.0

// Package redisstore keeps counters in Redis, so that a limit holds across every process that uses the same Redis.
//
// # Promise
//
// One call of [Store.Take] is one step in Redis and takes one round trip, however many checks it carries. It returns by
// its deadline, whatever Redis does, and each of its charges is executed at most once: a call is sent again only after
// the answer that the script was not there. A call whose caller has left before it was sent is never sent.
//
// # How
//
// Calls wait in one bounded queue. A few lanes, a goroutine with a connection each, take what is waiting and send it as
// one pipeline: a lone caller finds an idle lane and waits for nobody, many callers share the system calls. A circuit
// breaker watches the batches. When they fail it opens: calls then fail at once and Redis is probed in the background,
// a few times a second, until it answers.
//
// # Price
//
// A round trip per call, two goroutine switches, and a few allocations. When Redis hangs, every caller loses one deadline
// until the breaker opens, which takes about five failed batches.
//
// # When not to use it
//
// Not for one process alone: a store in memory decides in nanoseconds. Not with a Redis that evicts keys: limits are
// then forgotten under memory pressure, and the store can only warn.
//
// # Permissions
//
// Redis 6.2 or newer. [LeastPrivilege] is what an ACL user needs, in a cluster with [ClusterPrivilege].
package redisstore

// LeastPrivilege is the rest of an ACL SETUSER line that allows what the store does and no more. INFO is asked for
// settings that lose counters: without it nothing is warned of. SELECT is needed for a database other than 0. A server
// before 7.0 wants +script in place of +script|load.
const LeastPrivilege = "resetkeys ~rl1:* resetchannels -@all +ping +info +select +script|load +evalsha +time " +
	"+get +set +del +pexpire +zadd +zcount +zrange +zrangebyscore +zremrangebyrank +zremrangebyscore"

// ClusterPrivilege is what the user needs beside in a cluster.
const ClusterPrivilege = "+cluster|slots +asking"
