// SPDX-License-Identifier: Apache-2.0

// Package redisdir keeps a directory in Redis, beside the counters.
//
// # Promise
//
// The records are in the same Redis as the counters, in each of its modes, under keys that no
// counter can have:
//
//	rl1:~who:KIND:ID                       a client's record, as JSON
//	rl1:~key:SHA256                        the record of an API key, by its SHA-256 in hexadecimal
//	rl1:~keys:{~directory}                 a sorted set of the names of keys, each with the SHA-256
//	rl1:~networks:{~directory}             the records of all addresses and networks, as one JSON object of
//	                                       at most 1 MiB
//	rl1:~history:{~directory}              a stream of the latest 10,000 changes
//	rl1:~generation:{~directory}           a random text, made by the first change
//
// A change replaces a record only if the record has not changed since it was read. The change is
// then published on the channel rl1:~changed. A process that reads a directory needs the rights of
// [ReadPrivilege], and one that changes it needs those of [EditPrivilege].
//
// # Price
//
// A record takes about 130 bytes in Redis besides its text and the client's name. All networks are
// stored in one value. Every process reads the whole value after each change of a network.
//
// # When not to use it
//
// Without Redis, use [directory.Memory].
package redisdir

// ReadPrivilege lists the rights that the ACL user of a process needs to read a directory, in
// addition to those of the store.
const ReadPrivilege = "&rl1:~changed +subscribe +unsubscribe +xrange +xrevrange"

// EditPrivilege lists the rights that the ACL user of a command needs to change a directory, in
// addition to those of the store and ReadPrivilege.
const EditPrivilege = "+eval +xadd +publish +zrangebylex +zlexcount +zadd +zrem"
