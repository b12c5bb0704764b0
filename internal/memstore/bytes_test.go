// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock/core"
)

// taken recounts what a table takes.
func (t *table) taken() (n int64) {
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

// TestBytesAreBounded: long keys fill no more memory than the store may take, those who come then share the overflow
// counters, and who is held stays so.
func TestBytesAreBounded(t *testing.T) {
	s, err := New(Options{BytesMax: BytesMaxLeast, Now: func() core.Micros { return core.Hour }})
	if err != nil {
		t.Fatal(err)
	}
	l, first := limitOf(t, "2/1h"), 0
	var result [1]core.Result
	take := func(client int) core.Result {
		key := fmt.Sprintf("rl1:::{%d%s}:3600s:fw", client, strings.Repeat("x", 700+client%50))
		if err := s.Take(t.Context(), []core.Check{{Key: []byte(key), ScopeLen: 6, Limit: l, Op: core.OpTake, Cost: 1}}, result[:]); err != nil {
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
		if r := take(client); r.Refused || r.Overflow || r.Remaining != 0 {
			t.Fatalf("client %d: %+v, want its own counter", client, r)
		}
	}
}

// TestBytesAreWhatIsTaken makes counters of all kinds come and go, and counts.
func TestBytesAreWhatIsTaken(t *testing.T) {
	now := core.Hour
	s, err := New(Options{CountersMax: 20_000, Now: func() core.Micros { return now }})
	if err != nil {
		t.Fatal(err)
	}
	s.slack = 0
	limits := []*core.Limit{limitOf(t, "20/1s"), limitOf(t, "20/1s sliding_log"), limitOf(t, "20/1s token_bucket")}
	results := make([]core.Result, 3)
	for range 60_000 {
		now += 50
		checks := make([]core.Check, 1+rand.IntN(3))
		for i := range checks {
			key := fmt.Sprintf("rl1:a:b:{%d%s}:%d", rand.IntN(5000), strings.Repeat("y", rand.IntN(900)), i)
			checks[i] = core.Check{Key: []byte(key), ScopeLen: 8, Limit: limits[i], Op: core.OpTake, Cost: 1}
		}
		if err := s.Take(t.Context(), checks, results[:len(checks)]); err != nil {
			t.Fatal(err)
		}
	}
	sum := int64(0)
	for i := range s.shards {
		tab := &s.shards[i].table
		if tab.taken() != tab.bytes {
			t.Fatalf("shard %d takes %d bytes and says %d", i, tab.taken(), tab.bytes)
		}
		if tab.told == 0 { // nothing was asked of it
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

// BenchmarkBytesPerCounter is the table of docs/operations.md: what a counter takes by the length of its client's id.
func BenchmarkBytesPerCounter(b *testing.B) {
	const counters = 200_000
	l := limitOf(b, "1000/1h sliding_window")
	for _, id := range []int{8, 16, 32, 64, 128, 240, 255} {
		for name, width := range map[string]int{"plain": 1, "escaped": 3} { // of a byte as it stands in a key
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
