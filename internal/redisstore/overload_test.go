// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/redistest"
)

// TestCallersInAHurryDoNotOpenTheBreaker calls with deadlines that are too short for a healthy server: that is no news of
// the server, and others must not lose their limits by it.
func TestCallersInAHurryDoNotOpenTheBreaker(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: TimeoutMax})
	ready(t, s)
	p.set(60*time.Millisecond, false)
	limit := limitOf(t, "1000/1d")
	for row, tries := 0, 0; row < 2*failuresInRow; row, tries = row+1, tries+1 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		err := s.Take(ctx, take1("rl1:k", limit), make([]core.Result, 1))
		cancel()
		switch {
		case err == nil && tries < 100: // it lost the processor for so long that the answer was there as well
			row = -1
		case kindOf(err) != "timeout":
			t.Fatalf("a deadline of 2 ms, an answer after 60: error %v, want a timeout", err)
		}
		eventually(t, "no lane is busy", func() bool { return s.Stats().Waiting == 0 && len(s.only.Load().idle) == s.settings.lanes })
	}
	if err := s.Take(context.Background(), take1("rl1:k", limit), make([]core.Result, 1)); err != nil {
		t.Errorf("a caller with time: %v", err)
	}
	if state := s.Stats().Breaker; state != BreakerClosed {
		t.Errorf("the breaker is %s, want closed", state)
	}
}

// TestCallsThatWaitedTooLongAreNotSent shows a lane a call that has a quarter of its time left, and one that has less.
func TestCallsThatWaitedTooLongAreNotSent(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax, Lanes: 1})
	ready(t, s)
	checks, l := take1("rl1:k", limitOf(t, "100/1d")), <-s.only.Load().idle
	for waited, want := range map[time.Duration]int64{TimeoutMax / 2: 1, TimeoutMax*3/4 + time.Millisecond: 0} {
		before, c := server.Calls("evalsha"), newCall().(*call)
		c.prepare(context.Background(), time.Now().Add(TimeoutMax), TimeoutMax, false)
		c.cmd = newTake(context.Background(), 0, checks)
		now := time.Now().Add(waited)
		l.batchOne(c, now, now.Add(TimeoutMax))
		<-c.done
		if sent := server.Calls("evalsha") - before; sent != want {
			t.Errorf("after %s of %s in the queue the call was sent %d times, want %d", waited, TimeoutMax, sent, want)
		}
		if timeout := c.failure == errTimeout; timeout != (want == 0) {
			t.Errorf("after %s of %s in the queue: failure %v", waited, TimeoutMax, c.failure)
		}
	}
	s.only.Load().idle <- l
}

// TestHealthChecksLeaveConnectionsToCalls asks a hung server for its health from all sides.
func TestHealthChecksLeaveConnectionsToCalls(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := s.Check(ctx); err == nil {
				t.Error("a stopped server is healthy")
			}
		})
	}
	eventually(t, "a check is under way", func() bool { return len(s.only.Load().checking) == 1 })
	for range failuresInRow {
		begin := time.Now()
		_ = s.Take(context.Background(), take1("rl1:k", limitOf(t, "10/1m")), make([]core.Result, 1))
		if took := time.Since(begin); took > slowest {
			t.Errorf("a call with a deadline of %s took %s", TimeoutDefault, took)
		}
	}
	cancel()
	s.Close() // ends the check that holds a connection
	wg.Wait()
}
