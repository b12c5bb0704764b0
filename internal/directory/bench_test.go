// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/benchpair"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
	"github.com/penstock/penstock/internal/test/request"
)

// BenchmarkFind measures the lookup of a known client, one of 50,000.
func BenchmarkFind(b *testing.B) {
	d, err := directory.Open(directory.Options{Source: new(directory.Memory)})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	ids := make([]string, 50_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("u_%d", i)
		d.Fetch(b.Context(), 0, []policy.ClientName{{Kind: "user", ID: ids[i]}})
	}
	at := now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, ok := d.Find("user", ids[i%len(ids)], at); !ok {
			b.Fatal("a client is unknown")
		}
	}
}

// TestKnownClientsDoNotAllocate tests that a lookup of a remembered client allocates nothing,
// whether its identifier is short or long, and whether it has a record.
func TestKnownClientsDoNotAllocate(t *testing.T) {
	source := new(directory.Memory)
	d := open(t, directory.Options{Source: source})
	at := now()
	for _, id := range []string{"u_1", strings.Repeat("u", 36), strings.Repeat("u", 37), strings.Repeat("u", 200)} {
		for _, tier := range []string{"", "gold"} {
			if tier != "" {
				edit(t, source, directory.Edit{Client: "user:" + id, Action: directory.ActionSetTier, Tier: tier})
				eventually.Until(t, 20*time.Second, "the tier is in force", func() bool { r, _ := d.Find("user", id, at); return r != nil && r.Tier == tier })
			} else if r := fetch(t, d, "user", id); r != nil {
				t.Errorf("%s has the record %+v", id, r)
			}
			if n := testing.AllocsPerRun(1000, func() { d.Find("user", id, at) }); n != 0 {
				t.Errorf("%d bytes, tier %q: %v allocations", len(id), tier, n)
			}
		}
	}
}

// BenchmarkFirstContact measures how long a client waits when it is seen for the first time, over a
// local Redis, with 64 such clients at a time. The benchmark reports percentiles, and the number of
// clients in one read of Redis.
func BenchmarkFirstContact(b *testing.B) {
	const workers = 64
	store, err := redisstore.New(redisstore.Options{URL: redistest.Start(b).URL(), Timeout: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	d, err := directory.Open(directory.Options{Source: redisdir.New(store), Timeout: time.Second})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	waits := make([][]time.Duration, workers)
	var next atomic.Int64
	var group sync.WaitGroup
	b.ResetTimer()
	for w := range workers {
		group.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				began := time.Now()
				d.Fetch(context.Background(), 0, []policy.ClientName{{Kind: "user", ID: fmt.Sprint(i)}})
				waits[w] = append(waits[w], time.Since(began))
			}
		})
	}
	group.Wait()
	b.StopTimer()
	all := slices.Sorted(func(yield func(time.Duration) bool) {
		for _, of := range waits {
			for _, wait := range of {
				if !yield(wait) {
					return
				}
			}
		}
	})
	b.ReportMetric(float64(all[len(all)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(b.N)/float64(d.Figures().Reads.Load()), "clients/read")
	b.ReportMetric(float64(d.Len()), "remembered")
}

// BenchmarkFindKey measures the lookup of a known API key, one of 50,000, but not the computation
// of its SHA-256.
func BenchmarkFindKey(b *testing.B) {
	d, err := directory.Open(directory.Options{Source: new(directory.Memory)})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	hashes := make([][32]byte, 50_000)
	for i := range hashes {
		sum, name := hashOf(fmt.Sprint(i))
		hashes[i] = sum
		d.Fetch(b.Context(), 0, []policy.ClientName{{Kind: policy.KindKey, ID: name}})
	}
	at := now()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, _, ok := d.FindKey(hashes[i%len(hashes)], at); !ok {
			b.Fatal("a key is unknown")
		}
	}
}

// BenchmarkNotedKey measures the time that noting the uses of keys adds to the lookup of a valid
// key, one of 500.
func BenchmarkNotedKey(b *testing.B) {
	source := new(directory.Memory)
	hashes := make([][32]byte, 500)
	for i := range hashes {
		sum, name := hashOf(fmt.Sprint(i))
		hashes[i] = sum
		record := directory.KeyRecord{Name: fmt.Sprint(i), Client: "user:u"}
		if _, err := source.Swap(b.Context(), policy.ClientName{Kind: policy.KindKey, ID: name}, nil, record.Text(), directory.Entry{}); err != nil {
			b.Fatal(err)
		}
	}
	at, next := now(), 0
	way := func(used func([32]byte, int64) bool) func() {
		d, err := directory.Open(directory.Options{Source: source, KeyUsed: used})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = d.Close() })
		for i := range hashes {
			_, name := hashOf(fmt.Sprint(i))
			d.Fetch(b.Context(), 0, []policy.ClientName{{Kind: policy.KindKey, ID: name}})
			d.FindKey(hashes[i], at) // the first use is noted
		}
		return func() {
			if who, _, _ := d.FindKey(hashes[next%len(hashes)], at); who == nil {
				b.Fatal("a key is unknown")
			}
			next++
		}
	}
	m := meter.New()
	defer m.Use()()
	benchpair.Measure(b, []benchpair.Way{{Name: "unnoted", Call: way(nil)}, {Name: "noted", Call: way(m.NoteKey)}})
}

// BenchmarkKnownClient measures the time that the directory adds to the plan of a request from a
// remembered client, one of 500 or of 50,000.
func BenchmarkKnownClient(b *testing.B) {
	for _, clients := range []int{500, 50_000} {
		b.Run(fmt.Sprintf("%d clients", clients), func(b *testing.B) { measureKnownClient(b, clients) })
	}
}

func measureKnownClient(b *testing.B, clients int) {
	d, err := directory.Open(directory.Options{Source: new(directory.Memory)})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	document, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte("name: shop\ndirectory: true\nidentify: [{header: {name: X-User, unverified: true}}]\n"+
		"rules: [{name: api, match: {path: /api/*}, limit: 100/1m, tiers: {gold: 1000/1m}}]\n"))
	if err != nil {
		b.Fatal(err)
	}
	rs, err := document.Compile()
	if err != nil {
		b.Fatal(err)
	}
	requests := make([]request.Attributes, clients)
	var plan core.Plan
	for i := range requests {
		requests[i] = request.Attributes{PathText: "/api/x", Headers: map[string]string{"X-User": fmt.Sprintf("u_%d", i)}, Time: now()}
		plan.Reset()
		plan.UseDirectory(d)
		plan.Add(rs, &requests[i])
		d.Fetch(b.Context(), 0, plan.Unresolved())
	}
	next := 0
	way := func(use *directory.Directory) func() {
		return func() {
			plan.Reset()
			if use != nil {
				plan.UseDirectory(use)
			}
			plan.Add(rs, &requests[next%clients])
			if len(plan.Unresolved()) > 0 || len(plan.Checks()) != 1 {
				b.Fatal("a client is unknown")
			}
			next++
		}
	}
	benchpair.Measure(b, []benchpair.Way{{Name: "without a directory", Call: way(nil)}, {Name: "with a directory", Call: way(d)}})
}
