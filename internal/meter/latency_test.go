// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// TestBucketsCoverAllLatencies tests that each number is within the bounds of its bucket, and that
// the bounds of neighbours meet.
func TestBucketsCoverAllLatencies(t *testing.T) {
	t.Parallel()
	for bucket := range Buckets - 1 {
		from, to := BucketBounds(bucket)
		if next, _ := BucketBounds(bucket + 1); next != to || BucketOf(from) != bucket || BucketOf(to-1) != bucket || BucketOf(to) != bucket+1 {
			t.Errorf("bucket %d is from %d to %d, and the next from %d; these numbers are in %d, %d and %d", bucket, from, to, next,
				BucketOf(from), BucketOf(to-1), BucketOf(to))
		}
		if from >= 4 && 4*(to-from) > from {
			t.Errorf("bucket %d from %d to %d is too wide", bucket, from, to)
		}
	}
	for micros, want := range map[int64]int{-5: 0, 0: 0, 1 << 62: Buckets - 1, int64(2 * time.Minute / time.Microsecond): Buckets - 1} {
		if got := BucketOf(micros); got != want {
			t.Errorf("%d µs are in bucket %d, want %d", micros, got, want)
		}
	}
}

// TestLatenciesAreCountedOnce counts from several goroutines while others take the histograms and
// return some, and tests that no count is lost or doubled, and that keys are bounded.
func TestLatenciesAreCountedOnce(t *testing.T) {
	t.Parallel()
	m := New()
	m.CountLatency(&LatencyKey{Policy: "p"}, 5, false)
	if rows := m.TakeLatencies(); len(rows) != 0 {
		t.Fatalf("a meter that is off counted %v", rows)
	}
	defer m.Use()()
	const callers, each = 4, 5000
	var counting, taking sync.WaitGroup
	stop := make(chan struct{})
	var admitted, denied uint64
	sum := func(rows []LatencyRow) {
		for _, row := range rows {
			for _, c := range row.Counts {
				admitted, denied = admitted+c.Admitted, denied+c.Denied
			}
		}
	}
	taking.Go(func() {
		for again := false; ; again = !again {
			rows := m.TakeLatencies()
			if len(rows) > LatencyKeysMax+1 {
				t.Errorf("%d histograms", len(rows))
			}
			if again {
				m.ReturnLatencies(rows)
			} else {
				sum(rows)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for caller := range callers {
		counting.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(caller)))
			for i := range each {
				m.CountLatency(&LatencyKey{"p", "api", fmt.Sprint("/", i%3000, caller)}, random.Int64N(1e6), i%5 == 0)
			}
		})
	}
	counting.Wait()
	close(stop)
	taking.Wait()
	sum(m.TakeLatencies())
	if admitted != callers*each*4/5 || denied != callers*each/5 {
		t.Errorf("%d admitted and %d denied of %d", admitted, denied, callers*each)
	}
}

// TestCountingALatencyAllocatesNothing tests a key that was counted before.
func TestCountingALatencyAllocatesNothing(t *testing.T) {
	m := New()
	defer m.Use()()
	k := LatencyKey{"p", "api", "/"}
	if n := testing.AllocsPerRun(100, func() { m.CountLatency(&k, 17, false) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkLatency counts a decision.
func BenchmarkLatency(b *testing.B) {
	m := New()
	defer m.Use()()
	k := LatencyKey{"p", "api", "/"}
	for b.Loop() {
		m.CountLatency(&k, 17, false)
	}
}
