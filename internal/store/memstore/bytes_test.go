// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// table.recomputeMemory recomputes the memory that a table uses.
func (t *table) recomputeMemory() (n int64) {
	seen := map[*segment]bool{}
	for _, s := range t.directory {
		if !seen[s] {
			seen[s], n = true, n+segmentBytes
		}
	}
	for _, memory := range t.data {
		if memory != nil {
			n += pageBytes
		}
	}
	for _, marks := range t.logs.items {
		n += int64(cap(marks)) * markBytes
	}
	for _, violations := range t.records.items {
		n += int64(cap(violations)) * violationBytes
	}
	return n
}

// TestBytesAreBounded: long keys do not exceed the memory bound. When the bound is reached, new
// clients share the overflow counters, and stored clients are kept.
func TestBytesAreBounded(t *testing.T) {
	s, err := New(Options{BytesMax: BytesMaxLeast, Now: func() counter.Micros { return counter.Hour }})
	if err != nil {
		t.Fatal(err)
	}
	l, first := limittest.New(t, "2/1h"), 0
	var result [1]counter.Result
	take := func(client int) counter.Result {
		key := fmt.Sprintf("rl1:::{%d%s}:3600s:fw", client, strings.Repeat("x", 700+client%50))
		if err := s.Take(t.Context(), []counter.Check{{Key: []byte(key), ScopeLen: 6, Limit: l, Op: counter.OpTake, Cost: 1}}, result[:]); err != nil {
			t.Fatal(err)
		}
		return result[0]
	}
	for client := range 40_000 {
		if take(client).Overflow && first == 0 {
			first = client
		}
	}
	if before := liveHeap(); s.Bytes() > BytesMaxLeast+256*segmentBytes || before > 3*BytesMaxLeast {
		t.Errorf("%d bytes are taken, %d are live", s.Bytes(), before)
	}
	if first < BytesMaxLeast/1500 || s.Len() < BytesMaxLeast/1500 {
		t.Errorf("client %d is counted with others, %d counters are held", first, s.Len())
	}
	for client := range first {
		if r := take(client); r.Denied || r.Overflow || r.Remaining != 0 {
			t.Fatalf("client %d: %+v, want its own counter", client, r)
		}
	}
}

// TestByteCountIsExact adds and drops counters of all kinds, and compares the byte count with a
// recount.
func TestByteCountIsExact(t *testing.T) {
	now := counter.Hour
	s, err := New(Options{CountersMax: 20_000, Now: func() counter.Micros { return now }})
	if err != nil {
		t.Fatal(err)
	}
	s.slack = 0
	limits := []*counter.Limit{limittest.New(t, "20/1s"), limittest.New(t, "20/1s sliding_log"), limittest.New(t, "20/1s token_bucket")}
	results := make([]counter.Result, 3)
	for range 60_000 {
		now += 50
		checks := make([]counter.Check, 1+rand.IntN(3))
		for i := range checks {
			key := fmt.Sprintf("rl1:a:b:{%d%s}:%d", rand.IntN(5000), strings.Repeat("y", rand.IntN(900)), i)
			checks[i] = counter.Check{Key: []byte(key), ScopeLen: 8, Limit: limits[i], Op: counter.OpTake, Cost: 1}
		}
		if err := s.Take(t.Context(), checks, results[:len(checks)]); err != nil {
			t.Fatal(err)
		}
	}
	sum := int64(0)
	for i := range s.shards {
		tab := &s.shards[i].table
		if tab.recomputeMemory() != tab.bytes {
			t.Fatalf("shard %d takes %d bytes and says %d", i, tab.recomputeMemory(), tab.bytes)
		}
		if tab.bytesAdded == 0 { // the table was never used
			continue
		}
		sum += tab.bytes
	}
	if sum != s.Bytes() {
		t.Errorf("shards take %d bytes, the store says %d", sum, s.Bytes())
	}
}

func TestBytesMaxIsBounded(t *testing.T) {
	for _, n := range []int64{-1, 1, BytesMaxLeast - 1} {
		if _, err := New(Options{BytesMax: n}); err == nil || !strings.Contains(err.Error(), "at least 16777216") {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// BenchmarkBytesPerCounter measures the table in docs/reference/counters.md: the memory of a
// counter by the length of its client's ID.
func BenchmarkBytesPerCounter(b *testing.B) {
	const counters = 200_000
	l := limittest.New(b, "1000/1h sliding_window")
	for _, id := range []int{8, 16, 32, 64, 128, 240, 255} {
		// bytes per character of the id in a key
		for name, width := range map[string]int{"plain": 1, "escaped": 3} {
			b.Run(fmt.Sprintf("id=%d/%s", id, name), func(b *testing.B) {
				for range b.N {
					before := liveHeap()
					s := openOnOwnClock(b, CountersMaxBound)
					for i := range counters {
						key := fmt.Sprintf("rl1:shop:default:{header.x-user:%0*d}:60s:sw", id*width, i)
						fill(b, s, [][]byte{[]byte(key)}, l)
					}
					b.ReportMetric(float64(liveHeap()-before)/counters, "B/counter")
					b.ReportMetric(float64(s.Bytes())/counters, "said-B/counter")
				}
			})
		}
	}
}
