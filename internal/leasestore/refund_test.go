// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
)

// TestWhatIsFetchedInAdvanceMayComeBack: where requests settle, the bucket is told so by the calls in advance too, that go with
// none. One that was not would remember nothing of what is charged, and have nothing to give back.
func TestWhatIsFetchedInAdvanceMayComeBack(t *testing.T) {
	p, c := open(t, Options{}), leasedOf("a", limitOf(t, "100000/10s burst 100000"), 1)
	c.Refundable = true
	var advance, not atomic.Int64
	p.inner.instead(func(ctx context.Context, checks []core.Check, results []core.Result) error {
		for i := range checks {
			if k := &checks[i]; k.Op == core.OpUpTo && k.Cost == 0 {
				advance.Add(1)
			}
			if !checks[i].Refundable && checks[i].Op != core.OpGiveBack {
				not.Add(1)
			}
		}
		return p.inner.of.Take(ctx, checks, results)
	})
	for deadline := time.Now().Add(patience); advance.Load() < 10; {
		if p.clock.Add(100); time.Now().After(deadline) {
			t.Fatalf("%d calls in advance, of %+v", advance.Load(), p.Stats())
		}
		p.ask(c)
	}
	if not.Load() > 0 {
		t.Errorf("%d charges may not come back", not.Load())
	}
}
