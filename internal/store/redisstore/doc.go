// SPDX-License-Identifier: Apache-2.0

// Package redisstore keeps counters in Redis, so that a limit is enforced across all processes that
// use the same Redis.
//
// # Guarantees
//
// One call of [Store.Take] is one atomic step in Redis and one round trip, however many checks it
// carries. Redis should answer within the timeout, measured from when the call is sent. An answer
// that arrives later, but within [Store.Patience], still decides the call; a busy process can wait
// up to half a second longer. Before the call is sent, it can wait in the queue for up to a second,
// or for three timeouts if that is longer, while Redis keeps answering. A burst of calls is
// therefore not mistaken for an outage, but fails as an overload ([counter.ErrOverloaded]).
//
// Each charge is executed at most once. The store resends a call only after an error reply that
// proves that the call was not executed: NOSCRIPT, and, in a cluster or after a failover, MOVED,
// ASK, TRYAGAIN, CLUSTERDOWN, LOADING, MASTERDOWN and READONLY. A call whose caller gave up before
// it was sent is never sent.
//
// In a cluster the checks of one slot are one step. Checks of several slots are sent together. If
// one slot denies, the store refunds the charges of the other slots, by receipt, before it answers.
// Until then other clients see the charge. So if a counter has recently denied calls, its checks
// are sent first. The other checks of a call are sent only if the first ones admit the call. If a
// slot fails, the known charges of the other slots are refunded as well. While a slot moves, its
// checks are sent one by one in the same way. A check that uses two keys (a sliding log, a
// penalty), neither of which exists yet, waits until the slot has moved.
//
// # Implementation
//
// Calls wait in one bounded queue for each server, which serves clients in turn. A few lanes, each
// a goroutine with a connection, dispatch the waiting calls as one pipeline. A single caller finds
// an idle lane and does not wait; many callers share the system calls. A pipeline contains as many
// checks as the server has recently answered in a quarter of the timeout. So a burst of expensive
// calls waits in the queue and does not time out in the server's socket. A circuit breaker observes
// the batches. A batch that times out counts as failed only if the server does not answer a PING
// either (see pinger), because a client can keep a server busy. When batches fail, the breaker
// opens: calls then fail at once, and the store probes the server in the background, several times
// a second, until it answers. Then one call at a time is tried. Each server has its own breaker, so
// that a dead master does not delay calls to other servers. Where nodes are counted
// ([Store.CountNodes]), a node without calls tries the half-open breaker with its own announcement.
//
// The store reads the layout of a cluster with CLUSTER SLOTS, every ten seconds, and at once after
// MOVED, when a server fails, or when no server is known for a slot. With sentinels, the store
// finds the master with SENTINEL MASTER, and by the sentinels' failover messages. The store never
// reads from replicas, because they lag behind.
//
// # Cost
//
// A call costs a round trip, two goroutine switches and a few allocations. A refund over several
// slots costs a second round trip. A token bucket that is checked together with counters on other
// servers records how close to full it was, as does one whose charges are refundable (see
// [counter.Check]). The script takes about twice as long for such a bucket. When Redis hangs,
// callers wait for at most [Store.Patience], and only until the breaker opens.
//
// # When not to use it
//
// For a single process a store in memory is enough, and it decides in nanoseconds. Do not use a
// Redis that evicts keys: it forgets limits under memory pressure, and the store can only warn.
//
// # Permissions
//
// The store needs Redis 6.2 or newer. [LeastPrivilege] lists the rights that an ACL user needs. A
// cluster also needs [ClusterPrivilege], and a setup with sentinels [SentinelPrivilege].
package redisstore

// LeastPrivilege is the part of an ACL SETUSER line after the user's credentials. LeastPrivilege
// grants exactly the rights that the store needs. The store uses INFO to warn of settings that lose
// counters. SELECT is needed for a database other than 0. A server before 7.0 needs +script in
// place of +script|load.
const LeastPrivilege = "resetkeys ~rl1:* resetchannels -@all +ping +info +select +script|load +evalsha +client|setname +time " +
	"+get +set +del +pexpire +zadd +zcount +zrange +zrangebyscore +zremrangebyrank +zremrangebyscore"

// ClusterPrivilege lists the additional rights that the user needs in a cluster.
const ClusterPrivilege = "+cluster|slots +cluster|info +asking"

// SentinelPrivilege lists the additional rights that the user of the Redis servers needs with
// sentinels. WatchPrivilege lists all rights that a user of the sentinels themselves needs.
const (
	SentinelPrivilege = "+role"
	WatchPrivilege    = "resetkeys resetchannels &+switch-master -@all +ping +subscribe +sentinel|master"
)
