// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestABurstDelaysNoOtherSource: at a counter that all clients share, the request of another source
// is among the next two calls, however many requests of one source wait.
func TestABurstDelaysNoOtherSource(t *testing.T) {
	const n = 5000
	b := &burst{rig: open(t, Options{})}
	asked, step, l := make(chan uint32, n+gateCallsMax+1), make(chan struct{}), limittest.New(t, "1000000/1h")
	b.inner.instead(func(ctx context.Context, checks []counter.Check, results []counter.Result) error {
		asked <- checks[0].Source
		<-step
		return b.inner.of.Take(ctx, checks, results)
	})
	of := func(source uint32) counter.Check {
		c := takeOf("everyone", l, 1)
		c.Source = source
		return c
	}
	for range gateCallsMax + n {
		b.running.Go(func() { b.ask(context.Background(), of(1)) })
	}
	b.queues(n)
	eventually.Until(t, time.Minute, "the calls are under way", func() bool { return len(asked) == gateCallsMax })
	b.running.Go(func() { b.ask(context.Background(), of(2)) })
	b.queues(n + 1)
	for range gateCallsMax {
		<-asked
	}
	for range 2 {
		step <- struct{}{}
	}
	if first, second := <-asked, <-asked; first+second != 3 {
		t.Errorf("the next calls are of the sources %d and %d, want one of each source", first, second)
	}
	close(step)
	b.running.Wait()
	if a := b.admitted.Load(); a != gateCallsMax+n+1 {
		t.Errorf("%d admitted, %d denied, %d failed", a, b.denied.Load(), b.failed.Load())
	}
	b.isIdle()
}
