// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestUnitsFetchedInAdvanceAreRefundable: calls that take units in advance are marked as refundable
// if requests for the counter are. Otherwise the bucket would not record the charge and could
// refund nothing.
func TestUnitsFetchedInAdvanceAreRefundable(t *testing.T) {
	p, c := open(t, Options{}), leasedOf("a", limittest.New(t, "100000/10s burst 100000"), 1)
	c.Refundable = true
	var advance, not atomic.Int64
	p.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		for i := range checks {
			if k := &checks[i]; k.Op == counter.OpUpTo && k.Cost == 0 {
				advance.Add(1)
			}
			if !checks[i].Refundable && checks[i].Op != counter.OpRefund {
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
