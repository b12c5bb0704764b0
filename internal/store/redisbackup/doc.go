// SPDX-License-Identifier: Apache-2.0

// Package redisbackup writes the counters of a Redis to a file and merges them into a Redis again.
//
// A backup ([Write]) has all counters, penalties and receipts of all policies, as text, with a
// checksum. A backup has no other keys: the records of clients, API keys and policies can be
// written again from their source, and the records of nodes and the secrets belong to one Redis.
//
// A restore ([Restore]) finds any altered or missing byte before it writes anything. A restore
// merges each counter, in one atomic step, with what has been counted meanwhile. The greater use
// wins, so no client gets used units back. A restore that was interrupted can be repeated.
//
// A backup and a restore use bounded memory: they hold a few hundred counters at once.
package redisbackup
