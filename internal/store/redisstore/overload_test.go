// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestCallersInAHurryDoNotOpenTheBreaker: calls whose deadlines are too short for a healthy server
// are not evidence against the server, and must not degrade other callers.
func TestCallersInAHurryDoNotOpenTheBreaker(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: TimeoutMax})
	ready(t, s)
	p.set(60*time.Millisecond, false)
	limit := limittest.New(t, "1000/1d")
	for row, tries := 0, 0; row < 2*failuresInRow; row, tries = row+1, tries+1 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		err := s.Take(ctx, take1("rl1:k", limit), make([]counter.Result, 1))
		cancel()
		switch {
		// the goroutine was descheduled for so long that the answer had arrived too
		case err == nil && tries < 100:
			row = -1
		case kindOf(err) != "timeout":
			t.Fatalf("a deadline of 2 ms, an answer after 60: error %v, want a timeout", err)
		}
		waitUntil(t, "no lane is busy", func() bool { return s.Stats().Waiting == 0 && len(s.only.Load().idle) == s.settings.lanes })
	}
	if err := s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)); err != nil {
		t.Errorf("a caller with time: %v", err)
	}
	if state := s.Stats().Breaker; state != BreakerClosed {
		t.Errorf("the breaker is %s, want closed", state)
	}
}

// TestCallsThatWaitedTooLongAreNotSent passes calls to a lane. Some were queued for less and some
// for more than the maximum, while the server was silent for less or for more than 1.5 times the
// timeout. In one case, the deadline of the caller has passed.
func TestCallsThatWaitedTooLongAreNotSent(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: 100 * time.Millisecond, Lanes: 1})
	ready(t, s)
	n := s.only.Load()
	checks, l := take1("rl1:k", limittest.New(t, "100/1d")), <-n.idle
	for _, c := range []struct {
		// the time from the queuing of the call until a batch timed out; 0 if none did
		waited, silent time.Duration
		late           bool
		want           *Failure
	}{
		{queueWaitMin / 2, 0, false, nil},
		{queueWaitMin + time.Millisecond, 0, false, errOverloaded},
		{queueWaitMin / 2, 140 * time.Millisecond, false, nil},
		{queueWaitMin / 2, 150 * time.Millisecond, false, errNotAsked},
		{queueWaitMin / 2, 0, true, errCallerLate},
	} {
		waitUntil(t, "the store is old enough", func() bool { return s.clock() > 2*queueWaitMin })
		before, call := server.Calls("evalsha"), newCall().(*call)
		call.prepare(context.Background(), false)
		call.cmd = newTake(context.Background(), 0, checks)
		if call.queued = s.clock() - c.waited; c.late {
			call.deadline = time.Now()
		}
		if n.firstTimeout.Store(0); c.silent > 0 {
			n.pinger.verdict.Store(pingUnanswered)
			n.firstTimeout.Store(1)
			n.lastTimeout.Store(int64(call.queued + c.silent))
		}
		l.batchOne(call)
		<-call.done
		if sent := server.Calls("evalsha") - before; call.failure != c.want || sent != 1 && c.want == nil || sent != 0 && c.want != nil {
			t.Errorf("after %s in the queue, silent at %s: sent %d times, failure %v, want %v", c.waited, c.silent, sent, call.failure, c.want)
		}
		if c.want == nil && n.firstTimeout.Load() != 0 {
			t.Error("the server has answered, and is silent")
		}
	}
	n.idle <- l
	if !errors.Is(errCallerLate, counter.ErrOverloaded) || errors.Is(errCallerLate, counter.ErrUnavailable) {
		t.Error("on_error decides a call whose caller is late")
	}
}

// TestSlowIsNoOutage: a batch that times out although a later batch was answered has its own kind
// of failure, which does not count for the breaker.
func TestSlowIsNoOutage(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: 20 * time.Millisecond})
	ready(t, s)
	n := s.only.Load()
	p.set(0, true)
	for range 2 * failuresInRow {
		// This simulates that another lane receives answers.
		n.answered(s.clock() + time.Hour)
		n.repliedAt.Store(int64(s.clock() + time.Hour))
		err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "10/1d")), make([]counter.Result, 1))
		if kind := kindOf(err); kind != "connection" && (kind != "slow" || !errors.Is(err, counter.ErrOverloaded)) {
			t.Fatalf("error %v (%s), want a slow call", err, kind)
		}
	}
	if state := s.Stats().Breaker; state != BreakerClosed || s.Stats().Failures[KindSlow] == 0 {
		t.Errorf("the breaker is %s; %+v", state, s.Stats())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Values(ctx, []string{"rl1:~who:user:ann"}, make([][]byte, 1)); kindOf(err) != "slow" {
		t.Errorf("a value: error %v, want a slow call", err)
	}
	n.lastAnswered.Store(0)
	n.repliedAt.Store(0)
	waitUntil(t, "the breaker opens once nothing is answered", func() bool {
		_ = s.Take(context.Background(), take1("rl1:k", limittest.New(t, "10/1d")), make([]counter.Result, 1))
		return s.Stats().Breaker == BreakerOpen
	})
}

// TestCallsWithoutAConnectionAreUnsent: a call that times out while its connection is set up was
// certainly not executed, so its units are charged later. The same holds if the server answers
// another connection meanwhile.
func TestCallsWithoutAConnectionAreUnsent(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the server accepts connections, but sends no answer
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for works, want := range map[bool]Kind{false: KindTimeout, true: KindSlow} {
		s := open(t, Options{URL: "redis://" + listener.Addr().String(), Timeout: 20 * time.Millisecond})
		if works {
			s.only.Load().answered(s.clock() + time.Hour) // this simulates that another lane has received an answer
		}
		err = s.Take(context.Background(), take1("rl1:k", limittest.New(t, "10/1d")), make([]counter.Result, 1))
		if failure, ok := errors.AsType[*Failure](err); !ok || failure.Kind != want || !failure.Unsent() {
			t.Errorf("error %v, want one of the kind %s of a call that was not sent", err, want)
		}
	}
}

// TestHealthChecksLeaveConnectionsToCalls runs many health checks at once on a server that hangs.
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
	waitUntil(t, "a check is under way", func() bool { return len(s.only.Load().checking) == 1 })
	for range failuresInRow {
		begin := time.Now()
		_ = s.Take(context.Background(), take1("rl1:k", limittest.New(t, "10/1m")), make([]counter.Result, 1))
		if took := time.Since(begin); took > slowest {
			t.Errorf("a call with a deadline of %s took %s", TimeoutDefault, took)
		}
	}
	cancel()
	s.Close() // this ends the check that holds a connection
	wg.Wait()
}
