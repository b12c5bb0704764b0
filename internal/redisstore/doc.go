// SPDX-License-Identifier: Apache-2.0

// Package redisstore keeps counters in Redis, so that a limit holds across every process that uses the same Redis.
//
// # Promise
//
// One call of [Store.Take] is one step in Redis and takes one round trip, however many checks it carries. Redis has the
// timeout to answer, from when the call is sent, and a fifth more. Before, the call waits its turn for as long as Redis goes
// on answering, a second at most: what clients can bring about by asking much at once is not taken for a Redis that is
// away, and fails as an overload ([core.ErrOverloaded]). Each of its charges is executed at most once: a call is sent again only after
// an answer that proves that it was not executed (NOSCRIPT, and from a cluster or after a failover MOVED, ASK, TRYAGAIN,
// CLUSTERDOWN, LOADING, MASTERDOWN, READONLY). A call whose caller has left before it was sent is never sent.
//
// In a cluster the checks of one slot are one step. Those of several slots go out together, and if one refuses, what the
// others have charged is given back by receipt before the answer: all or nothing, but for the moment between, in which others
// see the charge. When a part fails, what the others are known to have charged is given back as well. While a slot moves, its
// checks are answered one by one in the same way; one that keeps two keys (a sliding log, a penalty), and has none yet, waits
// until the slot has moved.
//
// # How
//
// Calls wait in one bounded queue for each server, in which clients take turns. A few lanes, a goroutine with a connection each, take what is waiting and
// send it as one pipeline: a lone caller finds an idle lane and waits for nobody, many callers share the system calls. A circuit
// breaker watches the batches. When they fail it opens: calls then fail at once and the server is probed in the background,
// a few times a second, until it answers. Each server has a breaker of its own, so that a master that is dead holds up
// nobody who asks another. Then one call at a time is tried. Where nodes are counted ([Store.CountNodes]), a node that has no calls
// tries the server that counts them by saying that it is there.
//
// A cluster is known by CLUSTER SLOTS, which is asked every ten seconds, and at once after MOVED, when a server fails, or when a
// call's slot is nobody's; the master by SENTINEL MASTER, and by what sentinels tell of failovers. Replicas are never asked: what they
// know is behind.
//
// # Price
//
// A round trip per call, two goroutine switches, and a few allocations; a second round trip for what a call over several slots
// gives back. A token bucket that is asked together with counters elsewhere remembers how near to full it came, as one whose
// charges are refunded does (see core.Check): the script takes about twice as long for it. When Redis hangs,
// every caller loses two timeouts or so until the breaker opens, which takes about five failed batches.
//
// # When not to use it
//
// Not for one process alone: a store in memory decides in nanoseconds. Not with a Redis that evicts keys: limits are
// then forgotten under memory pressure, and the store can only warn.
//
// # Permissions
//
// Redis 6.2 or newer. [LeastPrivilege] is what an ACL user needs, in a cluster with [ClusterPrivilege], over sentinels with
// [SentinelPrivilege].
package redisstore

// LeastPrivilege is the rest of an ACL SETUSER line that allows what the store does and no more. INFO is asked for
// settings that lose counters: without it nothing is warned of. SELECT is needed for a database other than 0. A server
// before 7.0 wants +script in place of +script|load.
const LeastPrivilege = "resetkeys ~rl1:* resetchannels -@all +ping +info +select +script|load +evalsha +client|setname +time " +
	"+get +set +del +pexpire +zadd +zcount +zrange +zrangebyscore +zremrangebyrank +zremrangebyscore"

// ClusterPrivilege is what the user needs beside in a cluster.
const ClusterPrivilege = "+cluster|slots +cluster|info +asking"

// SentinelPrivilege is what the user needs beside over sentinels. WatchPrivilege is all that a user of the sentinels needs.
const (
	SentinelPrivilege = "+role"
	WatchPrivilege    = "resetkeys resetchannels &+switch-master -@all +ping +subscribe +sentinel|master"
)
