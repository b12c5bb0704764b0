// SPDX-License-Identifier: Apache-2.0

package fallback

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
)

// TestAnotherStoresChargeDelaysForAWhile: two stores have the same Counts. While the one with the
// later deadline charges a debt, a request of the other waits only as long as the deadline of its
// own store permits. The request is then decided by its own store, and the limit is not exceeded.
func TestAnotherStoresChargeDelaysForAWhile(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.FixedWindow, counter.TokenBucket} {
		synctest.Test(t, func(t *testing.T) {
			const limit, owed, patience = 10, 8, 100 * time.Millisecond
			w := newWorld(t, 1)
			slow := &chargingStore{shared: w.inner, released: make(chan struct{})}
			other := New(w.inner, Options{Counts: w.Counts, Patience: patience})
			w.Store = New(slow, Options{Counts: w.Counts})
			l, err := counter.NewLimit(algorithm, limit, 24*counter.Hour, 0)
			if err != nil {
				t.Fatal(err)
			}
			check := limited(t, "x", limit, 1, counter.OnErrorAllow)
			check.Limit = &l
			w.inner.err = errAway
			(&world{Store: other}).admits(t, owed, check)
			w.inner.err = nil
			first, result := make(chan error), make([]counter.Result, 1)
			go func() { first <- w.Take(context.Background(), []counter.Check{check}, result) }()
			synctest.Wait()
			admitted := owed
			for range 5 {
				begun, results := time.Now(), make([]counter.Result, 1)
				if err := other.Take(t.Context(), []counter.Check{check}, results); err != nil || time.Since(begun) > patience {
					t.Errorf("after %v: %v", time.Since(begun), err)
				}
				if !results[0].Denied {
					admitted++
				}
			}
			close(slow.released)
			if err := <-first; err != nil {
				t.Error(err)
			}
			if !result[0].Denied {
				admitted++
			}
			if admitted > limit || admitted == owed {
				t.Errorf("%v: %d are admitted in all, want at most %d", algorithm, admitted, limit)
			}
		})
	}
}
