// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
)

// shardIn returns where in a key its shard stands, and which one it is; end is 0 of a counter that is whole.
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
	n, ok := ParseWhole(key[start+1 : end-1])
	if !ok || n >= ShardsMax {
		return 0, 0, 0
	}
	return start, end, int(n)
}

// ShardOf returns which shard of its rule's counter a key is of, counted from 0; ok is false of one that is whole.
func ShardOf(key []byte) (shard int, ok bool) {
	_, end, shard := shardIn(key)
	return shard, end > 0
}

// AppendWholeKey appends the key that the counter would have if it were not spread over shards.
func AppendWholeKey(dst, key []byte) []byte {
	start, end, _ := shardIn(key)
	return append(append(dst, key[:start]...), key[end:]...)
}
