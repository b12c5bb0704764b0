// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/racescale"
)

// TestHash tests that similar names of any length have hashes that differ in about half of their
// bits. It also tests that no two of many names have equal hashes, and that shards fill evenly.
func TestHash(t *testing.T) {
	const lengthMax = 70
	ids := max(40_000, racescale.Fewer(200_000))
	key := newHashKey()
	for n := range lengthMax {
		id, differ, pairs := strings.Repeat("a", n), 0, 0
		before := key.hashOf(policy.ClientName{Kind: "user", ID: id})
		for i := range n {
			for bit := range 7 {
				changed := []byte(id)
				changed[i] ^= 1 << bit
				differ += bits.OnesCount64(before ^ key.hashOf(policy.ClientName{Kind: "user", ID: string(changed)}))
				pairs++
			}
		}
		if pairs > 0 && (differ < 24*pairs || differ > 40*pairs) {
			t.Errorf("%d bytes: %d bits differ in %d pairs", n, differ, pairs)
		}
	}
	seen, shards := map[uint64]string{}, map[uint64]int{}
	for i := range ids {
		for _, name := range []policy.ClientName{{Kind: "user", ID: fmt.Sprint(i)}, {Kind: "tenant", ID: fmt.Sprint(i)}, {Kind: "header.x-a", ID: fmt.Sprint("u_", i)},
			{Kind: "header.x-b", ID: fmt.Sprint("u_", i)}, {Kind: "user", ID: strings.Repeat("a", i%100) + fmt.Sprint("-", i)}} {
			hash := key.hashOf(name)
			if other, there := seen[hash]; there {
				t.Fatalf("%v and %s have the hash %x", name, other, hash)
			}
			seen[hash] = name.String()
			shards[hash%shardCount]++
		}
	}
	for shard, n := range shards {
		if even := len(seen) / shardCount; n < even*9/10 || n > even*11/10 {
			t.Errorf("shard %d has %d names, and %d would be even", shard, n, even)
		}
	}
}
