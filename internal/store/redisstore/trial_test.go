// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestABurstAfterAnOutageIsCounted: a store's breaker closes as soon as Redis answers again, even
// if the store has had no calls since the outage. So Redis decides all calls of the next burst.
func TestABurstAfterAnOutageIsCounted(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	outage(t, server, s)
	limit := limittest.New(t, "20/1d fixed_window")
	var group sync.WaitGroup
	for range 300 {
		group.Go(func() {
			if err := s.Take(context.Background(), take1("rl1:burst", limit), make([]counter.Result, 1)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if keys := server.Client().Keys(t.Context(), "*").Val(); len(keys) != 1 {
		t.Errorf("Redis has %q, want the counter only", keys)
	}
}

// TestATrialIsRejectedLikeACharge: the breaker of a server that answers PINGs and rejects all
// writes does not close. The breaker closes when the server accepts writes, even if the server has
// lost the script.
func TestATrialIsRejectedLikeACharge(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	ready(t, s)
	configure(t, server, "config", "set", "min-replicas-to-write", "1")
	callUntilOpen(t, s)
	n := s.only.Load()
	for range 5 {
		n.breaker.tryAgain()
		if n.try(); n.breaker.State() == BreakerClosed {
			t.Fatal("the breaker is closed, and the server rejects all writes")
		}
	}
	configure(t, server, "script", "flush")
	configure(t, server, "config", "set", "min-replicas-to-write", "0")
	waitUntil(t, "the breaker closes", func() bool { return s.Stats().Breaker == BreakerClosed })
}

// TestATrialInAForeignSlot: an answer that names another server of a cluster is no evidence. The
// breaker remains half open, and the next call tries it.
func TestATrialInAForeignSlot(t *testing.T) {
	t.Parallel()
	c := configureSteady(t, redistest.StartCluster(t))
	s := openCluster(t, c, Options{})
	callUntilAnswered(t, s)
	n := s.nodes()[0]
	for i := range 64 {
		foreign := key(i)
		if s.nodeOf(s.placeOf([]byte(foreign))) == n {
			continue
		}
		n.failedKey.Store(&foreign)
		break
	}
	n.breaker.trip(n.breaker.epoch.Load())
	waitUntil(t, "the breaker is half open", func() bool { return n.breaker.State() == BreakerHalfOpen })
	if n.try(); n.breaker.State() != BreakerHalfOpen {
		t.Errorf("the breaker is %s after MOVED", n.breaker.State())
	}
}
