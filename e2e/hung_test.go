// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// TestHungRedisHalvesNothing compares how many requests 64 connections get through in the same span before Redis hangs
// and from the moment it does, the first deadlines included.
func TestHungRedisHalvesNothing(t *testing.T) {
	const span = time.Second
	redis := redistest.Start(t)
	p := failingCaddy(t, redis)
	var got tally
	done := make(chan struct{})
	group := crowd(p, 64, &got, atLeastUntil(done, 0))
	answered := func() int64 { return got.admitted.Load() + got.refused.Load() }
	await.Until(t, 10*time.Second, "the limit is reached", func() bool { return got.refused.Load() > 1_000 })
	during := func() int64 {
		before := answered()
		<-time.After(span)
		return answered() - before
	}
	healthy := during()
	redis.Pause()
	hung := during()
	redis.Resume()
	// Counted again means refused: the limit was used up before.
	refused := got.refused.Load()
	await.Until(t, time.Second, "limits hold again", func() bool { return got.refused.Load() > refused+100 })
	close(done)
	group.Wait()
	t.Logf("in %v: %d healthy, %d hung; slowest %v", span, healthy, hung, time.Duration(got.slowest.Load()))
	if hung < healthy/2 {
		t.Errorf("%d requests in %v with a hung Redis, less than half of %d", hung, span, healthy)
	}
	if got.serverErrors.Load() != 0 || got.broken.Load() != 0 {
		t.Errorf("%d answers of 5xx and %d broken under on_error allow", got.serverErrors.Load(), got.broken.Load())
	}
}
