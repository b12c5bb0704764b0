// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"errors"
	"testing"
	"time"
)

// TestPatience: who knows the servers is asked again soon while one fails, and not while one only waits for its first call.
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
