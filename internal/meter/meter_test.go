// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"sync"
	"testing"
)

// sumRows adds up rows.
func sumRows(rows []Row) (t Sum) {
	for _, r := range rows {
		t.add(r.Sum)
	}
	return t
}

// TestNothingIsCountedTwiceOrLost tests that the counts of many goroutines add up while other
// goroutines take them, and sometimes return them.
func TestNothingIsCountedTwiceOrLost(t *testing.T) {
	t.Parallel()
	m := New()
	m.Use()
	const goroutines, each = 8, 20_000
	var counting sync.WaitGroup
	for g := range goroutines {
		counting.Go(func() {
			for i := range each {
				m.Count(&Key{Policy: "p", Rule: "r", Kind: "user", Client: fmt.Sprint(g, i%100)}, Sum{Admitted: 1, Units: 3})
			}
		})
	}
	done := make(chan struct{})
	go func() { counting.Wait(); close(done) }()
	var taken Sum
	for ended, i := false, 0; !ended; i++ {
		select {
		case <-done:
			ended = true
		default:
		}
		rows := m.Take()
		if i%3 == 0 && !ended {
			m.Return(rows)
			continue
		}
		taken.add(sumRows(rows))
	}
	if want := (Sum{Admitted: goroutines * each, Units: 3 * goroutines * each}); taken != want {
		t.Errorf("%+v was taken, want %+v", taken, want)
	}
}

// TestClientsBeyondTheBoundAreCountedTogether tests that made-up clients do not grow the meter, and
// that the total stays exact.
func TestClientsBeyondTheBoundAreCountedTogether(t *testing.T) {
	t.Parallel()
	m := New()
	m.Use()
	for range 2 { // Take makes room again
		for i := range KeysMax + 1000 {
			m.Count(&Key{Policy: "p", Rule: "r", Tier: "free", Kind: "user", Client: fmt.Sprint(i)}, Sum{Denied: 1})
		}
		rows := m.Take()
		if len(rows) != KeysMax+1 || sumRows(rows).Denied != KeysMax+1000 {
			t.Fatalf("%d rows with %d requests", len(rows), sumRows(rows).Denied)
		}
	}
}

// TestMadeUpClientsDoNotDisplaceThoseWithARecord tests that clients with a record are counted by
// name, however many made-up names came before them. This is also so after their sums have been
// returned to the meter.
func TestMadeUpClientsDoNotDisplaceThoseWithARecord(t *testing.T) {
	t.Parallel()
	m := New()
	m.Use()
	madeUp := func() {
		for i := range KeysMax + 1000 {
			m.Count(&Key{Policy: "p", Rule: "r", Kind: "user", Client: fmt.Sprint("x", i)}, Sum{Denied: 1})
		}
	}
	madeUp()
	for i := range 1000 {
		m.Count(&Key{Policy: "p", Rule: "r", Kind: "user", Client: fmt.Sprint(i), Known: true}, Sum{Admitted: 1})
	}
	m.Count(&Key{Policy: "p", Rule: "r", Kind: "user", Client: "5"}, Sum{Admitted: 1}) // its record was not found this time
	first := m.Take()
	madeUp()
	m.Return(first)
	names := 0
	for _, row := range m.Take() {
		if row.Admitted > 0 && row.Client != "" && row.Known {
			names++
		}
	}
	if names != 1000 || len(m.Take()) != 0 {
		t.Errorf("%d of 1000 clients with a record are counted by name", names)
	}
}

// TestCountingDoesNotAllocate tests that counting a known client does not allocate, and that the
// caller may change the values that it has passed.
func TestCountingDoesNotAllocate(t *testing.T) {
	m := New()
	name := []byte("ann")
	count := func() {
		m.Count(&Key{Policy: "p", Rule: "r", Kind: "user", Client: "ann"}, Sum{Admitted: 1, Units: 1})
	}
	if count(); len(m.Take()) > 0 {
		t.Error("a meter that is off counts")
	}
	m.Use()
	m.Count(&Key{Policy: "p", Rule: "r", Kind: "user", Client: string(name)}, Sum{Admitted: 1, Units: 1})
	if n := testing.AllocsPerRun(100, count); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if rows := m.Take(); len(rows) != 1 || rows[0].Admitted != 102 {
		t.Errorf("got %+v", rows)
	}
}

func BenchmarkCount(b *testing.B) {
	m := New()
	m.Use()
	keys := make([]Key, 1024)
	for i := range keys {
		keys[i] = Key{Policy: "shop", Rule: "api", Tier: "gold", Kind: "header.x-user", Client: fmt.Sprint("user-", i)}
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			m.Count(&keys[i%len(keys)], Sum{Admitted: 1, Units: 1})
		}
	})
}
