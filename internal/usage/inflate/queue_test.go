// SPDX-License-Identifier: Apache-2.0

package inflate

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestHalfOfTheProcessorsDecompress tests that many bodies of many sources are decompressed by at
// most half of the processors at the same time, each body once.
func TestHalfOfTheProcessorsDecompress(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(6))
	var q Queue
	var working, most, calls atomic.Int64
	var done sync.WaitGroup
	for n := range uint32(PlacesMax) {
		done.Add(1)
		if !q.Add(n%50+1, func() {
			defer done.Done()
			now := working.Add(1)
			for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
			}
			runtime.Gosched()
			working.Add(-1)
			calls.Add(1)
		}) {
			t.Fatal("there is no room for body", n)
		}
	}
	done.Wait()
	if most.Load() > 3 || calls.Load() != PlacesMax {
		t.Errorf("%d bodies were decompressed, and up to %d at the same time", calls.Load(), most.Load())
	}
}

// TestSourcesTakeTurns tests that a source whose bodies fill its half of the places delays another
// source by one body, and that a queue can be used again after it was empty.
func TestSourcesTakeTurns(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const greedy, other = 1, 2
	var q Queue
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			start, order, refused := make(chan bool), []string{}, 0
			q.Add(other, func() { <-start })
			synctest.Wait()
			for n := range SourceMax + 10 {
				if !q.Add(greedy, func() { order = append(order, fmt.Sprint("greedy ", n)) }) {
					refused++
				}
			}
			q.Add(other, func() { order = append(order, "other 0") })
			q.Add(other, func() { order = append(order, "other 1") })
			close(start)
			synctest.Wait()
			want := "greedy 0, other 0, greedy 1, other 1, greedy 2"
			if got := strings.Join(order[:5], ", "); got != want || len(order) != SourceMax+2 || refused != 10 {
				t.Errorf("got %s and %d in all, %d refused; want %s", got, len(order), refused, want)
			}
			if at := slices.Index(order, "other 1"); at != 3 {
				t.Errorf("the other source's second body is number %d", at)
			}
		})
	}
}

// TestWaitEndsWithTheWork tests that Wait waits for all work, but not beyond its deadline.
func TestWaitEndsWithTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue
		if !q.Wait(0) {
			t.Error("an empty queue is not done")
		}
		start, calls := make(chan bool), 0
		for range 10 {
			q.Add(1, func() { <-start })
		}
		if q.Wait(time.Second) {
			t.Error("the queue is done before its work")
		}
		waits := make(chan bool, 2)
		for range cap(waits) {
			go func() { waits <- q.Wait(time.Second) }()
		}
		synctest.Wait()
		q.Add(2, func() { calls++ })
		close(start)
		for range cap(waits) {
			if !<-waits || calls != 1 {
				t.Errorf("the queue is not done with its work: %d calls of the last", calls)
			}
		}
	})
}
