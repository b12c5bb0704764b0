// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestTable compares the table with a map over random changes. The hashes have few different homes,
// so that searches are long and wrap around, and removals move entries.
func TestTable(t *testing.T) {
	random := seed.Random(t)
	for range 200 {
		const room, roomMost = 24, 96
		all, table := map[uint64]*entry{}, newTable(room)
		for range 500 {
			hash := (random.Uint64N(40)*5+58)*shardCount | 1<<63
			if _, there := all[hash]; there && random.IntN(2) == 0 {
				delete(all, hash)
				table.remove(hash)
			} else if there || len(all) < room {
				e := &entry{hash: hash}
				all[hash] = e
				table.put(e)
			}
			if random.IntN(200) == 0 {
				table = table.grow(room + random.IntN(roomMost-room))
			}
			for i := range uint64(40) {
				hash := (i*5+58)*shardCount | 1<<63
				if got := table.find(hash); got != all[hash] {
					t.Fatalf("hash %x: %p, want %p", hash, got, all[hash])
				}
			}
		}
	}
}

// TestACacheThatChangesMissesNobody tests that clients in use are found at any time, while other
// clients are added and evicted, and that no client is mistaken for another.
func TestACacheThatChangesMissesNobody(t *testing.T) {
	c := newCache(16 * shardCount)
	name := func(kind string, i int) policy.ClientName { return policy.ClientName{Kind: kind, ID: fmt.Sprint(i)} }
	const used, readers = 64, 4
	for i := range used {
		c.put(&entry{name: name("used", i)})
	}
	var running sync.WaitGroup
	var ended atomic.Bool
	for range readers {
		running.Go(func() {
			for i := 0; !ended.Load(); i++ {
				want := name("used", i%used)
				if e := c.find(want); e == nil || e.name != want {
					t.Errorf("%v is not found", want)
					return
				}
			}
		})
	}
	for i := range max(10_000, racescale.Fewer(50_000)) {
		c.find(name("used", i%used)) // the client is used between two others, so its entry is not evicted
		c.put(&entry{name: name("other", i)})
	}
	ended.Store(true)
	running.Wait()
	if n := c.len(); n > 16*shardCount {
		t.Errorf("%d entries", n)
	}
}
