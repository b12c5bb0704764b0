// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"errors"
	"testing"
	"time"
)

// TestPatience: discovery is repeated soon while a server fails, but not while a half-open breaker
// only waits for a call.
func TestPatience(t *testing.T) {
	s := open(t, Options{URL: "redis://127.0.0.1:1"})
	for state, want := range map[BreakerState]time.Duration{BreakerClosed: askEvery, BreakerOpen: 0, BreakerHalfOpen: askEvery} {
		s.only.Load().breaker.state.Store(uint32(state))
		if got := s.patience(nil); got != want {
			t.Errorf("%s: asked again after %v, want %v", state, got, want)
		}
	}
	if got := s.patience(errors.New("nobody answered")); got != 0 {
		t.Errorf("without an answer: asked again after %v, want at once", got)
	}
}

// TestUnknownServersAreDiscovered: a call without a known server starts discovery, however many
// such calls there are.
func TestUnknownServersAreDiscovered(t *testing.T) {
	s := &Store{ctx: t.Context(), rediscoverNow: make(chan struct{}, 1)}
	s.cluster = &cluster{store: s, nodes: map[string]*node{}}
	for range 3 {
		p := &part{place: slotOf("rl1:{k}")}
		if s.prepare(t.Context(), p) || p.failure != errNoServer {
			t.Errorf("failure %v, want that no server is known", p.failure)
		}
	}
	if n := len(s.rediscoverNow); n != 1 {
		t.Errorf("the cluster is to be asked %d times, want once", n)
	}
}
