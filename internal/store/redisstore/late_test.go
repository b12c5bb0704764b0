// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestLateAnswersDecide: a burst of one client can make Redis answer later than the timeout. If
// on_error decided then, the client would get past its limit. The server here is stopped for
// several timeouts while calls are under way. Each call gets its answer.
func TestLateAnswersDecide(t *testing.T) {
	const callers, limit = 60, 40
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	sent := s.Stats().Batches
	server.Pause()
	var mu sync.Mutex
	var admitted, denied int
	var calls sync.WaitGroup
	for range callers {
		calls.Go(func() {
			results := make([]counter.Result, 1)
			err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "40/1d")), results)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				t.Error(err)
			case results[0].Denied:
				denied++
			default:
				admitted++
			}
		})
	}
	waitUntil(t, "a batch has been sent", func() bool { return s.Stats().Batches > sent })
	<-time.After(3 * TimeoutDefault)
	server.Resume()
	calls.Wait()
	if admitted != limit || denied != callers-limit {
		t.Errorf("%d admitted and %d denied of %d, want %d admitted", admitted, denied, callers, limit)
	}
	if state := s.Stats().Breaker; state != BreakerClosed {
		t.Errorf("the breaker is %s, want closed", state)
	}
}

// TestAHungServerDelaysOnce: the breaker opens after the first PING without an answer, so a server
// that hangs delays calls only once, by less than a second.
func TestAHungServerDelaysOnce(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	before := s.Stats().Batches
	server.Pause()
	defer server.Resume()
	start := time.Now()
	err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "40/1d")), make([]counter.Result, 1))
	if took := time.Since(start); err == nil || took > 2*time.Second {
		t.Errorf("the call took %s, error %v", took, err)
	}
	waitUntil(t, "the breaker opens", func() bool { return s.Stats().Breaker == BreakerOpen })
	if sent := s.Stats().Batches - before; sent >= failuresInRow {
		t.Errorf("the breaker opened after %d batches, want fewer than %d", sent, failuresInRow)
	}
}

// TestAHungServerDelaysOnceWithoutConnections is like TestAHungServerDelaysOnce, but the server has
// closed all connections before, so the PING needs a new one.
func TestAHungServerDelaysOnceWithoutConnections(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	if err := server.Client().Do(context.Background(), "client", "kill", "skipme", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	server.Pause()
	defer server.Resume()
	if err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "40/1d")), make([]counter.Result, 1)); err == nil {
		t.Error("a server that hangs has answered")
	}
	waitUntil(t, "the breaker opens", func() bool { return s.Stats().Breaker == BreakerOpen })
}

// TestLateness: late batches count as failures only after all batches have been late for
// starvedMax.
func TestLateness(t *testing.T) {
	const timeout, late = 50 * time.Millisecond, 60 * time.Millisecond
	var l lateness
	for i, c := range []struct {
		sent, took time.Duration
		want       bool
	}{
		{time.Second, late, false},
		{time.Second + starvedMax - late - 1, late, false},
		{time.Second + starvedMax - late, late, true},
		{4 * time.Second, timeout, false},
		{5 * time.Second, late, false},
		{5*time.Second + starvedMax, late, true},
	} {
		if got := l.lasts(c.sent, c.took, timeout); got != c.want {
			t.Errorf("batch %d: %t, want %t", i, got, c.want)
		}
	}
}

// TestStarvationIsExcused: for starvedMax, a late answer to a PING or the lateness of this process
// excuses a batch without an answer. Later, such a batch counts as an outage.
func TestStarvationIsExcused(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	n := s.only.Load()
	patience := s.settings.patience
	veryLate := patience + patience/10 + processLateMin + time.Millisecond
	for _, c := range []struct {
		name          string
		silentFor     time.Duration
		took          time.Duration
		pongIsLate    bool
		wantIsHealthy bool
	}{
		{"no answer", 0, patience, false, false},
		{"a late answer to a PING", 0, patience, true, true},
		{"a late process", 0, veryLate, false, true},
		{"late answers to PINGs for long", starvedMax, patience, true, false},
		{"a late process for long", starvedMax, veryLate, false, false},
	} {
		waitUntil(t, "the store is old enough", func() bool { return s.clock() > starvedMax+veryLate+time.Second })
		sent := s.clock() - c.took
		n.lastAnswered.Store(1)
		n.pinger.inTimeAt.Store(1)
		n.pinger.answeredAt.Store(1)
		if c.pongIsLate {
			n.pinger.answeredAt.Store(int64(s.clock()))
		}
		n.silence.first.Store(int64(sent - c.silentFor))
		n.silence.latest.Store(int64(sent))
		if got := n.noteTimeout(sent, c.took); got != c.wantIsHealthy {
			t.Errorf("%s: healthy %t, want %t", c.name, got, c.wantIsHealthy)
		}
	}
}
