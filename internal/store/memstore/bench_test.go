// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// key36 returns a key of 36 bytes, which differs for each of millions of clients.
func key36(dst []byte, client int, l *counter.Limit) []byte {
	return fmt.Appendf(dst[:0], "%s{user:u_%08d}:60s:%s", scope, client, l.Algorithm().Label())
}

func clientKeys(n int, l *counter.Limit) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = key36(nil, i, l)
	}
	return keys
}

func openOnOwnClock(t testing.TB, countersMax int) *Store {
	s, err := New(Options{CountersMax: countersMax})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func fill(t testing.TB, s *Store, keys [][]byte, l *counter.Limit) {
	results := make([]counter.Result, 1)
	for _, key := range keys {
		c := [1]counter.Check{{Key: key, ScopeLen: len(scope), Limit: l, Cost: 1}}
		if err := s.Take(context.Background(), c[:], results); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, text := range []string{"1000/1h fixed_window", "1000/1h sliding_window", "100/1h burst 1000 token_bucket",
		"100/1h sliding_log"} {
		l := limittest.New(b, text)
		for _, n := range []int{1, 3} {
			b.Run(fmt.Sprintf("%s/checks=%d/clients=100k", l.Algorithm(), n), func(b *testing.B) {
				benchmarkTake(b, l, n)
			})
		}
	}
}

func benchmarkTake(b *testing.B, l *counter.Limit, n int) {
	const clients = 100_000
	s := openOnOwnClock(b, 0)
	fill(b, s, clientKeys(clients, l), l)
	runtime.GC() // collect the keys now rather than during the measurement
	b.ReportAllocs()
	b.ResetTimer()
	spent := cpuTime(b)
	defer func() { b.ReportMetric(float64(cpuTime(b)-spent)/float64(b.N), "cpu-ns/op") }()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		checks, results := make([]counter.Check, n), make([]counter.Result, n)
		for i := range checks {
			checks[i] = counter.Check{Key: key36(nil, 0, l), ScopeLen: len(scope), Limit: l, Cost: 1}
		}
		for pb.Next() {
			for i, client := 0, rng.IntN(clients-n); i < n; i++ {
				number(checks[i].Key, client+i)
			}
			if err := s.Take(context.Background(), checks, results); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// number changes the client in a key that key36 returned, because a front also builds a key for
// each request.
func number(key []byte, client int) {
	first := len(scope) + len("{user:u_")
	for at := first + 7; at >= first; at, client = at-1, client/10 {
		key[at] = byte('0' + client%10)
	}
}

// BenchmarkMapByHand measures, for comparison, the minimum that an in-memory limiter has to do: 256
// maps with a mutex each, and one number per client.
func BenchmarkMapByHand(b *testing.B) {
	const clients = 100_000
	var shards [256]struct {
		mu     sync.Mutex
		counts map[string]*int64
		_      [64]byte
	}
	seed, l := maphash.MakeSeed(), limittest.New(b, "1000/1h")
	for _, key := range clientKeys(clients, l) {
		sh := &shards[maphash.Bytes(seed, key)>>56]
		if sh.counts == nil {
			sh.counts = map[string]*int64{}
		}
		sh.counts[string(key)] = new(int64)
	}
	runtime.GC()
	b.ResetTimer()
	spent := cpuTime(b)
	defer func() { b.ReportMetric(float64(cpuTime(b)-spent)/float64(b.N), "cpu-ns/op") }()
	b.RunParallel(func(pb *testing.PB) {
		rng, key := rand.New(rand.NewPCG(rand.Uint64(), 0)), key36(nil, 0, l)
		for pb.Next() {
			number(key, rng.IntN(clients))
			sh := &shards[maphash.Bytes(seed, key)>>56]
			sh.mu.Lock()
			*sh.counts[string(key)]++
			sh.mu.Unlock()
		}
	})
}

// BenchmarkNewcomer measures a check of a new client, in a store with room and in a full store.
func BenchmarkNewcomer(b *testing.B) {
	l := limittest.New(b, "100/1h token_bucket")
	for name, held := range map[string]int{"room": CountersMaxBound, "full": 100_000} {
		b.Run(name, func(b *testing.B) {
			s := openOnOwnClock(b, held)
			fill(b, s, clientKeys(100_000, l), l)
			keys := clientKeys(100_000+b.N, l)[100_000:]
			b.ReportAllocs()
			b.ResetTimer()
			fill(b, s, keys, l)
		})
	}
}

// BenchmarkMemory fills a store with ten million counters and reports the live heap per counter.
func BenchmarkMemory(b *testing.B) {
	const counters = 10_000_000
	l := limittest.New(b, "1000/1h sliding_window")
	for range b.N {
		before := liveHeap()
		s := openOnOwnClock(b, CountersMaxBound)
		var key []byte
		one := make([][]byte, 1)
		for i := range counters {
			key = key36(key, i, l)
			one[0] = key
			fill(b, s, one, l)
		}
		if s.Len() != counters {
			b.Fatalf("%d counters held, want %d", s.Len(), counters)
		}
		b.ReportMetric(float64(liveHeap()-before)/counters, "B/counter")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/counters/float64(b.N), "ns/counter")
		runtime.KeepAlive(s)
	}
}

// cpuTime returns the processor time of this process in nanoseconds, which is more reliable on a
// busy machine than the clock.
func cpuTime(t testing.TB) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRebuild measures the longest pause: rehashing all records of a random segment, as in a
// split, in a table much larger than the processor's caches.
func BenchmarkRebuild(b *testing.B) {
	tab, l := openTable(), limittest.New(b, "1000/1h")
	for i := range 2_000_000 {
		key := key36(nil, i, l)
		tab.insert(tab.hash(key), key)
	}
	records := 0
	b.ResetTimer()
	for range b.N {
		s := tab.directory[rand.IntN(len(tab.directory))]
		records += int(s.live)
		tab.rebuild(s)
	}
	b.ReportMetric(float64(records)/float64(b.N), "records/op")
}
