// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

func TestSlowAnswersUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	f := start(t, open(t, Options{URL: p.url()}), 32)
	f.awaitAnswers(t)
	p.set(120*time.Millisecond, false) // longer than the timeout of calls and of PINGs
	f.failures(t, 2000)
	p.set(0, false)
	f.calm(t, time.Now())
	f.end(t)
	f.checkAtMostOnce(t, server, false)
}

func TestLostAnswersUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	f := start(t, open(t, Options{URL: p.url()}), 32)
	f.awaitAnswers(t)
	p.set(0, true) // charges are executed, but their replies are lost
	f.failures(t, 2000)
	p.set(0, false)
	f.calm(t, time.Now())
	f.end(t)
	f.checkAtMostOnce(t, server, false)
}

func TestConnectionsResetUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	f := start(t, open(t, Options{URL: p.url()}), 32)
	for i := range 40 {
		f.awaitAnswers(t)
		p.resetAfter(1 + 37*i) // the connection is cut in the middle of a batch's answers
	}
	f.calm(t, time.Now())
	f.end(t)
	f.checkAtMostOnce(t, server, false)
	if f.failed.Load() == 0 {
		t.Error("no call failed: no connection was reset in the middle of anything")
	}
	var answered, unknown int64
	for i := range f.unknown {
		answered += f.granted[i].Load()
		unknown += f.unknown[i].Load()
	}
	if executed := server.Calls("evalsha") - server.Calls("del"); executed > answered+unknown { // without the breaker's trials: only they delete keys
		t.Errorf("redis executed %d calls; %d were answered and %d unknown", executed, answered, unknown)
	}
}

func TestDelayedAnswersStillCount(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: TimeoutMax})
	ready(t, s)
	p.set(50*time.Millisecond, false)
	results := make([]counter.Result, 1)
	if err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "10/1m")), results); err != nil || results[0].Granted != 1 {
		t.Errorf("an answer within the deadline: granted %d, error %v", results[0].Granted, err)
	}
}

// TestConnectsThoughADeadlineIsTooShort: if connecting takes longer than a check's deadline, a
// connection is opened in the background.
func TestConnectsThoughADeadlineIsTooShort(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	p.set(30*time.Millisecond, false) // the greeting, the script and the call take three round trips
	s := open(t, Options{URL: p.url(), Timeout: 75 * time.Millisecond})
	limit := limittest.New(t, "10/1m")
	waitUntil(t, "a call is answered", func() bool {
		return s.Take(context.Background(), take1("rl1:k", limit), make([]counter.Result, 1)) == nil
	})
}

func TestQueueFullFailsAtOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax, QueueMax: 3, Lanes: 1})
	ready(t, s)
	server.Pause()
	limit := limittest.New(t, "10/1d fixed_window")
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	call := func() {
		wg.Go(func() { _ = s.Take(ctx, take1("rl1:k", limit), make([]counter.Result, 1)) })
	}
	call()
	waitUntil(t, "the lane is busy", func() bool { return s.Stats().Batches == 1 })
	for range 3 {
		call()
	}
	waitUntil(t, "the queue is full", func() bool { return s.Stats().Waiting == 3 })
	begin := time.Now()
	err := s.Take(ctx, take1("rl1:k", limit), make([]counter.Result, 1))
	if took := time.Since(begin); took > slowest {
		t.Errorf("a full queue was noticed only after %s", took)
	}
	if kindOf(err) != "queue_full" || !errors.Is(err, counter.ErrOverloaded) || errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("error %v (%s), want a full queue", err, kindOf(err))
	}
	cancel() // cancels all calls in the queue
	wg.Wait()
	server.Resume()
	waitUntil(t, "those who left are passed over", func() bool { return s.Stats().Waiting == 0 })
	results := make([]counter.Result, 1)
	if err := s.Take(context.Background(), take1("rl1:k", limit), results); err != nil {
		t.Fatal(err)
	}
	if results[0].Remaining != 10-2 {
		t.Errorf("remaining %d, want 8: the one call that was sent and this one", results[0].Remaining)
	}
	if calls := server.Calls("evalsha"); calls != 2 {
		t.Errorf("redis executed %d calls, want 2: a call whose caller has left is not sent", calls)
	}
}

func TestDeadlineOfTheCaller(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	ready(t, s)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	err := s.Take(ctx, take1("rl1:k", limittest.New(t, "10/1m")), make([]counter.Result, 1))
	if took := time.Since(begin); took > slowest {
		t.Errorf("a call with a deadline of 20 ms took %s", took)
	}
	if kindOf(err) != "timeout" || !errors.Is(err, counter.ErrOverloaded) || errors.Is(err, counter.ErrUnavailable) {
		t.Errorf("error %v (%s), want a timeout of the caller, which is no outage", err, kindOf(err))
	}
}
