// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/redistest"
)

const (
	// examRecords is the number of records in make exam, and usualRecords is the number in other
	// runs.
	examRecords, usualRecords = 10_000_000, 100_000
	// The test looks up one client in examShare in make exam, and one in usualShare otherwise. If
	// the machine stops the process for a moment, all waiting clients are late. If fewer clients
	// were looked up, the late ones would be more than one in a hundred.
	examShare, usualShare = 10, 5
	// recordBytesAllTold is the documented size of a record in Redis, including its key and the
	// overhead of Redis.
	recordBytesAllTold = 250
	// Clients are looked up a few at a time, as in a busy proxy, and many at a time, as fast as
	// possible.
	fewAtOnce, manyAtOnce = 8, 64
	// shards is how many shards a directory has. It rounds its bound up by at most this number of
	// records.
	shards = 64
)

// TestManyRecords fills Redis with records (ten million in make exam), and looks up some of the
// clients. The test checks bounds of memory, and that clients that were seen before cause almost no
// reads. It only logs the times, because they depend on the machine.
func TestManyRecords(t *testing.T) {
	records, share := max(20_000, racescale.Fewer(usualRecords)), usualShare
	if os.Getenv(racescale.ExamVariable) != "" {
		records, share = racescale.Fewer(examRecords), examShare
	}
	server := redistest.Start(t)
	store, err := redisstore.New(redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	source := redisdir.New(store)
	empty := server.Memory()
	fill(t, source, records)
	each := float64(server.Memory()-empty) / float64(records)
	t.Logf("%d records take %.0f bytes each in Redis", records, each)
	if each > recordBytesAllTold {
		t.Errorf("a record takes %.0f bytes, more than %d", each, recordBytesAllTold)
	}
	active := records / share
	d := open(t, directory.Options{Source: source, ClientsMax: 2 * active}) // because the shards do not fill evenly
	none := heap()
	for i, atOnce := range [...]int{fewAtOnce, manyAtOnce} {
		before := d.Figures().Reads.Load()
		first := contact(t, d, i*active/2, (i+1)*active/2, atOnce, "u_%d")
		t.Logf("%d first contacts, %d at a time: p50 %v, p99 %v, most %v; %.1f clients in a read", len(first), atOnce, first.at(50), first.at(99),
			first.at(100), float64(len(first))/float64(d.Figures().Reads.Load()-before))
	}
	reads := d.Figures().Reads.Load()
	t.Logf("a remembered client takes %.0f bytes of heap", float64(heap()-none)/float64(active))
	later := contact(t, d, 0, active, manyAtOnce, "u_%d")
	t.Logf("and later: p99 %v", later.at(99))
	// A late read is repeated, and the repetition may end after the clients have been answered.
	if again := d.Figures().Reads.Load() - reads; again > uint64(1+active/1000) {
		t.Errorf("%d reads for %d clients that were seen before", again, active)
	}
	if undirected := d.Figures().Undirected.Load(); undirected != 0 {
		t.Errorf("%d clients were decided without their records", undirected)
	}
	t.Logf("%d clients were not read within a second", d.Figures().Overloads.Load()) // this happens on a machine that is too busy
	holdsMadeUp(t, d, 2*active)
}

// holdsMadeUp looks up made-up clients: first n, which is as many as the directory remembers, and
// then n others, which must not enlarge the directory.
func holdsMadeUp(t *testing.T, d *directory.Directory, n int) {
	t.Helper()
	contact(t, d, 0, n, manyAtOnce, "made_up_%d")
	full, reads, began := heap(), d.Figures().Reads.Load(), time.Now()
	contact(t, d, 0, n, manyAtOnce, "invented_%d")
	grown := heap() - full
	read := d.Figures().Reads.Load() - reads
	t.Logf("%d made-up clients: %d bytes of heap more, %d remembered; %d reads, %.0f a second", n, grown, d.Len(), read,
		float64(read)/time.Since(began).Seconds())
	if grown > full/10 || d.Len() > n+shards {
		t.Errorf("the heap grew by %d bytes to %d, and %d clients are remembered", grown, full+grown, d.Len())
	}
	if read > uint64(n) {
		t.Errorf("%d reads for %d clients", read, n)
	}
}

// fill writes n typical records: all have a tier, one in five also has limits with a reason, and
// one in twenty is blocked.
func fill(t *testing.T, source *redisdir.Source, records int) {
	t.Helper()
	const part = 10_000
	names, texts := make([]policy.ClientName, 0, part), make([][]byte, 0, part)
	for i := range records {
		r := directory.Record{Tier: "gold"}
		switch {
		case i%20 == 0:
			r.Block = &directory.Mark{Reason: "abuse, ticket 4711"}
		case i%4 == 0:
			r.Limits = map[string]directory.Limits{"api": {Limits: []string{"500/1h"}, Reason: "contract of March"}}
		}
		names, texts = append(names, policy.ClientName{Kind: "user", ID: fmt.Sprintf("u_%d", i)}), append(texts, r.Text())
		if len(names) == part || i == records-1 {
			if err := source.Fill(t.Context(), names, texts); err != nil {
				t.Fatal(err)
			}
			names, texts = names[:0], texts[:0]
		}
	}
}

// A value of type waits holds the waiting times of clients, sorted.
type waits []time.Duration

func (w waits) at(percent int) time.Duration { return w[(len(w)-1)*percent/100] }

// contact looks up the clients with numbers in a range, several clients at a time, and measures how
// long each waits.
func contact(t *testing.T, d *directory.Directory, from, to, atOnce int, form string) waits {
	t.Helper()
	all := make(waits, to-from)
	var next atomic.Int64
	var seen sync.WaitGroup
	for range atOnce {
		seen.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(all); i = int(next.Add(1)) - 1 {
				id := fmt.Sprintf(form, from+i)
				began := time.Now()
				if _, known := d.Find("user", id, now()); !known {
					d.Fetch(context.Background(), uint32(i%manyAtOnce), []policy.ClientName{{Kind: "user", ID: id}})
				}
				all[i] = time.Since(began)
			}
		})
	}
	seen.Wait()
	slices.Sort(all)
	return all
}

// heap returns the bytes of the heap in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
