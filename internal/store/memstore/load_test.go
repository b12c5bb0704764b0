// SPDX-License-Identifier: Apache-2.0

package memstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// goroutines is the number of concurrent callers.
const goroutines = 16

// runTogether runs f in many goroutines at the same time. Each of them has its own source of random
// numbers.
func runTogether(t *testing.T, f func(rng *rand.Rand) error) {
	seed := seed.First(t)
	var group sync.WaitGroup
	for i := range goroutines {
		group.Go(func() {
			if err := f(rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// TestManyCallersAdmitExactlyTheLimit: many callers check few clients, with several checks in every
// order. Exactly the limit is admitted.
func TestManyCallersAdmitExactlyTheLimit(t *testing.T) {
	const clients, perGoroutine = 300, 2000
	p, l := open(t, 0), limittest.New(t, "100/1h fixed_window")
	var mu sync.Mutex
	granted := make([]int64, clients)
	runTogether(t, func(rng *rand.Rand) error {
		mine := make([]int64, clients)
		for range perGoroutine {
			chosen := rng.Perm(clients)[:1+rng.IntN(8)]
			checks, results := make([]counter.Check, len(chosen)), make([]counter.Result, len(chosen))
			for i, c := range chosen {
				checks[i] = takeOf(fmt.Sprint(c), l, 1)
				checks[i].Shadow = i > 0 // each check is decided independently
			}
			if err := p.Take(context.Background(), checks, results); err != nil {
				return err
			}
			for i, c := range chosen {
				mine[c] += results[i].Granted
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for c, n := range mine {
			granted[c] += n
		}
		return nil
	})
	for c, n := range granted {
		if n != 100 {
			t.Errorf("client %d was granted %d, want 100", c, n)
		}
	}
}

// TestGrowthUnderLoadLosesNothing: a store that grows under load keeps every charge.
func TestGrowthUnderLoadLosesNothing(t *testing.T) {
	const clients = 20_000
	perGoroutine := max(5_000, racescale.Fewer(15_000))
	p, l := open(t, 0), limittest.New(t, "1000000/1h sliding_window")
	var mu sync.Mutex
	charged := make([]int64, clients)
	runTogether(t, func(rng *rand.Rand) error {
		mine, results := make([]int64, clients), make([]counter.Result, 1)
		for range perGoroutine {
			c := rng.IntN(clients)
			if err := p.Take(context.Background(), []counter.Check{takeOf(fmt.Sprint(c), l, 1)}, results); err != nil {
				return err
			}
			mine[c]++
		}
		mu.Lock()
		defer mu.Unlock()
		for c, n := range mine {
			charged[c] += n
		}
		return nil
	})
	for c, n := range charged {
		if state, _ := p.counter(t, clientKey(fmt.Sprint(c), l), l); state.Used != n {
			t.Fatalf("client %d: %d units kept, %d charged", c, state.Used, n)
		}
	}
	for i := range p.shards {
		p.shards[i].checkConsistent(t)
	}
}

// TestFullStoreUnderLoad: a full store on its own clock has counters that expire after a
// millisecond or an hour. Under random operations no client exceeds its hourly limit, and no charge
// is lost or counted twice.
func TestFullStoreUnderLoad(t *testing.T) {
	const bound, clients = 500, 2000
	perGoroutine := max(2_000, racescale.Fewer(8_000))
	s := openOnOwnClock(t, bound)
	long, brief := limittest.New(t, "5/1h fixed_window"), limittest.New(t, "5/1ms token_bucket")
	var mu sync.Mutex
	granted := map[string]int64{}
	runTogether(t, func(rng *rand.Rand) error {
		mine, results := map[string]int64{}, make([]counter.Result, 3)
		for range perGoroutine {
			one, two := fmt.Sprint(rng.IntN(clients)), fmt.Sprint("b", rng.IntN(clients))
			checks := []counter.Check{takeOf(one, long, 1), takeOf(two, brief, 1), takeOf(one, brief, 1)}
			checks[1].Op, checks[2].Shadow = counter.Op(rng.IntN(5)), true
			checks[1].Min, checks[1].Max, checks[1].Receipt = 1, 1, 1
			if err := s.Take(context.Background(), checks, results); err != nil {
				return err
			}
			if n := results[0].Granted; n > 0 {
				mine[fmt.Sprint(one, "@", results[0].Receipt)] += n
			}
			if n := s.Len(); n > bound {
				return fmt.Errorf("%d counters, at most %d are allowed", n, bound)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		for c, n := range mine {
			granted[c] += n
		}
		return nil
	})
	for c, n := range granted {
		if n > 5 {
			t.Errorf("client and window %s were granted %d, at most 5 are allowed", c, n)
		}
	}
	held := 0
	for i := range s.shards {
		s.shards[i].checkConsistent(t)
		held += s.shards[i].held
	}
	if held != s.Len() || s.Overflows() == 0 {
		t.Errorf("%d counters in the shards, %d counted, %d overflows", held, s.Len(), s.Overflows())
	}
	s.overflow.checkConsistent(t)
}

// bytesPerCounterMax bounds the memory of a counter with a 36-byte key at the worst fill level of
// the index.
const bytesPerCounterMax = 120

// TestBytesPerCounterAtTheWorstFill: from a hundred thousand counters on, through several doublings
// of the index, the average stays below its bound.
func TestBytesPerCounterAtTheWorstFill(t *testing.T) {
	last := racescale.Long(1_050_000)
	first := min(100_000, last)
	l := limittest.New(t, "1000/1h sliding_window")
	before := liveHeap()
	s := openOnOwnClock(t, CountersMaxBound)
	var key []byte
	worst, at := 0.0, 0
	for n, next := 1, first; n <= last; n++ {
		key = key36(key, n, l)
		fill(t, s, [][]byte{key}, l)
		if n < next {
			continue
		}
		next += next / 10
		if each := float64(liveHeap()-before) / float64(n); each > worst {
			worst, at = each, n
		}
	}
	if s.Len() != last {
		t.Errorf("%d counters held, want %d", s.Len(), last)
	}
	t.Logf("%.1f bytes per counter at the worst fill, %d counters", worst, at)
	if worst > bytesPerCounterMax {
		t.Errorf("%.1f bytes per counter with %d of them, at most %d are allowed", worst, at, bytesPerCounterMax)
	}
	runtime.KeepAlive(s)
}
