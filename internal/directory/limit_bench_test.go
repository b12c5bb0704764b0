// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/benchpair"
)

// BenchmarkLookUp measures the parts of a lookup of a remembered client, one of 500 or of 50,000,
// compared with a map under a lock. The benchmark shows the minimal cost of a lookup: hashing the
// name, and then reading two places in memory. With many clients, these places are not in the
// processor's nearest caches.
func BenchmarkLookUp(b *testing.B) {
	for _, form := range []string{"u_%010d", "%08x-0000-4000-8000-0123456789ab"} {
		for _, clients := range []int{500, 50_000} {
			b.Run(fmt.Sprintf("%d bytes of %d clients", len(fmt.Sprintf(form, 0)), clients), func(b *testing.B) { measureLookUp(b, form, clients) })
		}
	}
}

func measureLookUp(b *testing.B, form string, clients int) {
	c, known := newCache(8*clients), make(map[policy.ClientName]*entry, clients)
	names := make([]policy.ClientName, clients)
	for i := range names {
		names[i] = policy.ClientName{Kind: "header.x-user", ID: fmt.Sprintf(form, i)}
		e := &entry{name: names[i]}
		e.now.Store(nothing)
		c.put(e)
		known[e.name] = e
	}
	var lock sync.RWMutex
	var next int
	var sum uint64
	name := func() policy.ClientName { next++; return names[next%clients] }
	benchpair.Measure(b, []benchpair.Way{
		{Name: "a map under a lock", Call: func() {
			lock.RLock()
			e := known[name()]
			lock.RUnlock()
			sum += e.hash
		}},
		{Name: "the hash", Call: func() { sum += c.key.hashOf(name()) }},
		{Name: "the hash and the slot", Call: func() {
			hash := c.key.hashOf(name())
			sum += c.shard(hash).table.Load().place(hash).hash.Load()
		}},
		{Name: "the hash, the slot and the entry", Call: func() {
			hash := c.key.hashOf(name())
			sum += uint64(c.shard(hash).table.Load().place(hash).entry.Load().fresh)
		}},
		{Name: "a lookup", Call: func() { sum += c.find(name()).hash }},
	})
}
