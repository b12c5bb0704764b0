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

	"github.com/penstock/penstock/core"
)

// key36 is a key of 36 bytes that tells millions of clients apart.
func key36(dst []byte, client int, l *core.Limit) []byte {
	return fmt.Appendf(dst[:0], "%s{user:u_%08d}:60s:%s", scope, client, l.Algorithm().Label())
}

func clientKeys(n int, l *core.Limit) [][]byte {
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

func fill(t testing.TB, s *Store, keys [][]byte, l *core.Limit) {
	results := make([]core.Result, 1)
	for _, key := range keys {
		c := [1]core.Check{{Key: key, ScopeLen: len(scope), Limit: l, Cost: 1}}
		if err := s.Take(context.Background(), c[:], results); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, text := range []string{"1000/1h fixed_window", "1000/1h sliding_window", "100/1h burst 1000 token_bucket",
		"100/1h sliding_log"} {
		l := limitOf(b, text)
		for _, n := range []int{1, 3} {
			b.Run(fmt.Sprintf("%s/checks=%d/clients=100k", l.Algorithm(), n), func(b *testing.B) {
				benchmarkTake(b, l, n)
			})
		}
	}
}

func benchmarkTake(b *testing.B, l *core.Limit, n int) {
	const clients = 100_000
	s := openOnOwnClock(b, 0)
	fill(b, s, clientKeys(clients, l), l)
	runtime.GC() // the keys that filled it, not later
	b.ReportAllocs()
	b.ResetTimer()
	spent := cpuTime(b)
	defer func() { b.ReportMetric(float64(cpuTime(b)-spent)/float64(b.N), "cpu-ns/op") }()
	b.RunParallel(func(pb *testing.PB) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		checks, results := make([]core.Check, n), make([]core.Result, n)
		for i := range checks {
			checks[i] = core.Check{Key: key36(nil, 0, l), ScopeLen: len(scope), Limit: l, Cost: 1}
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

// number writes another client into a key of key36, as a front builds a key anew for each request.
func number(key []byte, client int) {
	first := len(scope) + len("{user:u_")
	for at := first + 7; at >= first; at, client = at-1, client/10 {
		key[at] = byte('0' + client%10)
	}
}

// BenchmarkMapByHand is the least that a limiter in memory can do, for comparison on the same machine: 256 maps with
// a mutex each, and a number per client.
func BenchmarkMapByHand(b *testing.B) {
	const clients = 100_000
	var shards [256]struct {
		mu     sync.Mutex
		counts map[string]*int64
		_      [64]byte
	}
	seed, l := maphash.MakeSeed(), limitOf(b, "1000/1h")
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

// BenchmarkNewcomer is what a client costs that was never seen: while there is room, and when there is none.
func BenchmarkNewcomer(b *testing.B) {
	l := limitOf(b, "100/1h token_bucket")
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

// BenchmarkMemory fills a store with ten million counters and reports the live heap of each.
func BenchmarkMemory(b *testing.B) {
	const counters = 10_000_000
	l := limitOf(b, "1000/1h sliding_window")
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

// cpuTime is what the process has used of the processors, in nanoseconds: on a busy machine it says more than the clock.
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

// BenchmarkRebuild is the longest pause there is: every record of a random segment is hashed and entered again, as when
// a segment is split, in a table much larger than the processor's caches.
func BenchmarkRebuild(b *testing.B) {
	tab, l := openTable(), limitOf(b, "1000/1h")
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
