// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestHungRedisHalvesNothing counts the requests that 64 connections complete in the last second
// before Redis hangs, and in the first second while it hangs. The first deadlines pass in that
// second. Nevertheless, the number must not fall to less than half.
func TestHungRedisHalvesNothing(t *testing.T) {
	t.Parallel()
	const span, tries = time.Second, 4
	redis := redistest.Start(t)
	p := startForgetfulCaddy(t, redis)
	var got tally
	done := make(chan struct{})
	group := startLoad(p, 64, &got, untilClosed(done))
	answered := func() int64 { return got.admitted.Load() + got.refused.Load() }
	eventually.Until(t, patience, "the limit is reached", func() bool { return got.refused.Load() > 1_000 })
	during := func() int64 {
		before := answered()
		<-time.After(span)
		return answered() - before
	}
	// Other work on the machine may reduce the rate. But the test fails only if the rate is halved
	// in every try.
	healthy, hung := int64(1), int64(0)
	for try := 0; try < tries && hung < healthy/2; try++ {
		healthy = during()
		redis.Pause()
		hung = during()
		redis.Resume()
		t.Logf("in %v: %d healthy, %d hung", span, healthy, hung)
	}
	// A denial shows that requests are counted again, because the limit was used up before.
	refused := got.refused.Load()
	eventually.Until(t, patience, "limits hold again", func() bool { return got.refused.Load() > refused+100 })
	close(done)
	group.Wait()
	t.Logf("slowest %v", time.Duration(got.slowest.Load()))
	if hung < healthy/2 {
		t.Errorf("%d requests in %v with a hung Redis, less than half of %d, and %d times", hung, span, healthy, tries)
	}
	if got.serverErrors.Load() != 0 || got.broken.Load() != 0 {
		t.Errorf("%d answers of 5xx and %d broken under on_error allow", got.serverErrors.Load(), got.broken.Load())
	}
}
