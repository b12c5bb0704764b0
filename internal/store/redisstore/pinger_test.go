// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestABusyServerIsNotAway: calls that time out while the server answers PINGs do not open the
// breaker, because a single client can cause them. Calls that wait in the queue are sent, and a
// value that is not read in time does not count as an outage. The breaker opens as soon as the
// server does not answer PINGs either, and closes when the server works again.
func TestABusyServerIsNotAway(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: 40 * time.Millisecond})
	ready(t, s)
	s.settings.silentMax = time.Minute // the test does not depend on the machine's speed
	n := s.only.Load()
	waitUntil(t, "the first PING is answered", func() bool { return p.countPinged() > 0 })
	once := func() error {
		return s.Take(context.Background(), take1("rl1:k", limittest.New(t, "1000/1d")), make([]counter.Result, 1))
	}
	p.setBusy(true)
	p.set(0, true)
	for range failuresInRow + 1 {
		if err := once(); err == nil || kindOf(err) == "breaker_open" {
			t.Fatalf("error %v (%s), want a call without an answer", err, kindOf(err))
		}
	}
	if state := s.Stats().Breaker; state != BreakerClosed {
		t.Fatalf("the breaker is %s although the server answers PINGs", state)
	}
	if n.hung(&call{queued: 1}) {
		t.Error("the server counts as hung although it answers PINGs")
	}
	waitUntil(t, "a value that is late is slow", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*s.settings.timeout)
		defer cancel()
		return kindOf(s.Values(ctx, []string{"rl1:~who:user:ann"}, make([][]byte, 1))) == "slow"
	})
	p.setBusy(false)
	waitUntil(t, "the breaker opens once nothing is answered", func() bool {
		_ = once()
		return s.Stats().Breaker == BreakerOpen
	})
	p.set(0, false)
	waitUntil(t, "the server is used again", func() bool { return once() == nil })
	waitUntil(t, "the breaker closes", func() bool { return s.Stats().Breaker == BreakerClosed })
}

// TestPingsAloneAreNotEnough: a server that answers PINGs but no call, like a paused server, opens
// the breaker after silentMax. Every trial opens the breaker again until the server answers calls.
func TestPingsAloneAreNotEnough(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: 40 * time.Millisecond})
	ready(t, s)
	s.settings.silentMax = time.Second
	waitUntil(t, "the first PING is answered", func() bool { return p.countPinged() > 0 })
	once := func() error {
		return s.Take(context.Background(), take1("rl1:k", limittest.New(t, "1000/1d")), make([]counter.Result, 1))
	}
	p.setBusy(true)
	p.set(0, true)
	waitUntil(t, "the breaker opens", func() bool {
		_ = once()
		return s.Stats().Breaker == BreakerOpen
	})
	n := s.only.Load()
	for range 2 { // this is the state after a probe, which is a PING
		n.breaker.tryAgain()
		waitUntil(t, "a trial opens the breaker again", func() bool {
			_ = once()
			return s.Stats().Breaker == BreakerOpen
		})
	}
	p.set(0, false)
	waitUntil(t, "the server is used again", func() bool { return once() == nil })
	waitUntil(t, "the breaker closes", func() bool { return s.Stats().Breaker == BreakerClosed })
	if n.silent() {
		t.Error("the server counts as silent although it has answered")
	}
}

// TestSilence: a silence ends with an answered batch, and does not include a time without calls.
func TestSilence(t *testing.T) {
	const most = 5 * time.Second
	at := func(seconds int64) int64 { return seconds * int64(time.Second) }
	for _, c := range []struct {
		name         string
		timeouts     []int64 // when batches that timed out were sent, in seconds
		lastAnswered int64
		want         int64 // when the silence began
	}{
		{"one timeout", []int64{3}, 2, 3},
		{"several without an answer", []int64{3, 5, 9}, 2, 3},
		{"an answer between them", []int64{3, 5, 9}, 4, 5},
		{"no calls for long", []int64{3, 5, 10, 12}, 2, 10},
	} {
		var s silence
		for _, sent := range c.timeouts {
			lastAnswered := c.lastAnswered
			if lastAnswered > sent {
				lastAnswered = 0
			}
			s.note(at(sent), at(lastAnswered), most)
		}
		if got := s.first.Load(); got != at(c.want) {
			t.Errorf("%s: the silence began at %s, want %d s", c.name, time.Duration(got), c.want)
		}
	}
}

// TestASlowLinkOpensTheBreaker: a server that answers PINGs later than the timeout answers no call
// in time, so calls should not wait for it.
func TestASlowLinkOpensTheBreaker(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server)
	s := open(t, Options{URL: p.url(), Timeout: 20 * time.Millisecond})
	ready(t, s)
	p.set(30*time.Millisecond, false)
	waitUntil(t, "the breaker opens", func() bool {
		_ = s.Take(context.Background(), take1("rl1:k", limittest.New(t, "1000/1d")), make([]counter.Result, 1))
		return s.Stats().Breaker == BreakerOpen
	})
}

// TestPingsFollowLateReplies: a server that answers in time gets no PING after the first.
func TestPingsFollowLateReplies(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), Timeout: TimeoutMax})
	ready(t, s)
	before := server.Calls("ping")
	for range 200 {
		if err := s.Take(context.Background(), take1("rl1:k", limittest.New(t, "1000/1d")), make([]counter.Result, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if pings := server.Calls("ping") - before; pings > 10 { // a few PINGs are sent while connections are set up
		t.Errorf("%d PINGs beside 200 calls", pings)
	}
}

// TestOnlyAPongOrAnErrorAnswersAPing: an error reply shows that the server works, but a server that
// sends anything else does not answer calls.
func TestOnlyAPongOrAnErrorAnswersAPing(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).URL()})
	ready(t, s)
	for _, c := range []struct {
		reply    string
		answered bool
	}{
		{"+PONG\r\n", true}, {"-NOAUTH Authentication required.\r\n", true}, {":1\r\n", false}, {"$-1\r\n", false}, {"garbage\n", false},
	} {
		near, far := net.Pipe()
		p := &pinger{conn: near}
		go func() { _, _ = far.Write([]byte(c.reply)) }()
		answered, err := p.answered(s.only.Load(), TimeoutMax)
		if answered != c.answered || answered == (err != nil) {
			t.Errorf("%q: answered %t, error %v", c.reply, answered, err)
		}
		p.close()
		_ = far.Close()
	}
}
