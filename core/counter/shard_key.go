// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"bytes"
	"strconv"

	"github.com/penstock/penstock/core/slim"
)

// shardIn returns the position of the shard's name in a key, and the shard's number. The result end
// is 0 if the counter is not sharded.
func shardIn(key []byte) (start, end, shard int) {
	start = bytes.IndexByte(key, '{') + 1
	if start == 0 || start == len(key) || key[start] != shardMark {
		return 0, 0, 0
	}
	colon := bytes.IndexByte(key[start:], ':')
	if colon < 0 {
		return 0, 0, 0
	}
	end = start + colon + 1
	n, ok := slim.ParseWhole(key[start+1 : end-1])
	if !ok || n >= ShardsMax {
		return 0, 0, 0
	}
	return start, end, int(n)
}

// ShardOf returns the number of the shard in a key, counted from 0. The result ok is false if the
// counter is not sharded.
func ShardOf(key []byte) (shard int, ok bool) {
	_, end, shard := shardIn(key)
	return shard, end > 0
}

// AppendUnshardedKey appends the key without its shard.
func AppendUnshardedKey(dst, key []byte) []byte {
	start, end, _ := shardIn(key)
	return append(append(dst, key[:start]...), key[end:]...)
}

// AppendKeyOfShard appends the key of another shard of the same counter.
func AppendKeyOfShard(dst, key []byte, shard uint64) []byte {
	start, end, _ := shardIn(key)
	return append(AppendShard(append(dst, key[:start]...), shard), key[end:]...)
}

// AppendShard appends the part of a key that names the shard.
func AppendShard(dst []byte, shard uint64) []byte {
	return append(strconv.AppendUint(append(dst, shardMark), shard, 10), ':')
}

// ShardsMax is the greatest number of shards of a rule. A cluster rarely has more servers than
// this, and a set of this many shards fits in one 64-bit integer.
const ShardsMax = 64

// shardMark begins the shard in the braces of a key: "~3:" is the fourth shard. No kind of client,
// dimension or rule name begins with this mark.
const shardMark = '~'
