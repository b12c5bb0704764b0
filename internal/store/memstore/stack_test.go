// SPDX-License-Identifier: Apache-2.0

//go:build !race

// TestSmallCallsNeedLittleStack runs without the race detector, which needs larger frames.

package memstore_test

import (
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestSmallCallsNeedLittleStack starts goroutines that call the store once, and compares the size
// of their stacks with a bound. A goroutine that serves a connection is idle most of the time. The
// garbage collector then shrinks its stack, and every call that needs more copies it again.
func TestSmallCallsNeedLittleStack(t *testing.T) {
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limit := limittest.New(t, "1000/1m")
	const goroutines, most = 256, 12 << 10
	runtime.GC() // otherwise a collection during the test could shrink the stacks
	before := stackBytes()
	var called, done sync.WaitGroup
	end := make(chan struct{})
	for range goroutines {
		called.Add(1)
		done.Go(func() {
			checks := [...]counter.Check{{Key: []byte("one"), Limit: limit, Cost: 1}, {Key: []byte("two"), Limit: limit, Cost: 1},
				{Key: []byte("three"), Limit: limit, Cost: 1}}
			var results [len(checks)]counter.Result
			if err := store.Take(t.Context(), checks[:], results[:]); err != nil {
				t.Error(err)
			}
			called.Done()
			<-end
		})
	}
	called.Wait()
	each := (stackBytes() - before) / goroutines
	close(end)
	done.Wait()
	if each > most {
		t.Errorf("a goroutine that has called the store has a stack of %d bytes, want at most %d", each, most)
	}
}

// stackBytes returns the memory of the stacks of all goroutines.
func stackBytes() int64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
