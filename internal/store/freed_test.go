// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/leasestore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestClosedStoresAreFreed tests that one garbage collection frees closed stores. A reload that
// changes settings replaces stores. If two collections were needed to free them, the heap would
// grow with each reload.
func TestClosedStoresAreFreed(t *testing.T) {
	const stores = 20
	limit, err := counter.ParseLimit("1000000/30d")
	if err != nil {
		t.Fatal(err)
	}
	server, pool := redistest.StartTCP(t), new(store.Pool)
	before := runtime.NumGoroutine()
	var closed []weak.Pointer[leasestore.Store]
	for n := range stores {
		s, err := store.Open(timed(pool, server.URL(), 5*time.Second+time.Duration(n)*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		s.AwaitStart(t.Context())
		checks := []counter.Check{{Key: []byte("rl1:pool:r:{x}:30d"), Limit: &limit, Cost: 1, Lease: true}}
		if err := s.Requests.Take(t.Context(), checks, make([]counter.Result, 1)); err != nil {
			t.Fatal(err)
		}
		closed = append(closed, weak.Make(s.Leases)) // the layer that holds tables
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	runtime.GC()
	kept := 0
	for _, s := range closed {
		if s.Value() != nil {
			kept++
		}
	}
	if kept > 1 {
		t.Errorf("%d of %d closed stores are in memory after a collection", kept, stores)
	}
	eventually.Until(t, 20*time.Second, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}
