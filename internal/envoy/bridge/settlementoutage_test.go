// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"
	"time"

	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestTheRealCostCountsWhileRedisIsFrozen: Redis does not answer, so the bridge decides. The cost
// of the response is charged to the bridge's own share, and to Redis when it answers again. A lower
// cost is credited only by the bridge that admitted the request.
func TestTheRealCostCountsWhileRedisIsFrozen(t *testing.T) {
	server := redistest.Start(t)
	open := func() (*testBridge, *store.Store) {
		s, err := store.Open(store.Options{Redis: &redisstore.Options{URL: server.URL(), Timeout: 250 * time.Millisecond}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() }) // the leased units of a test need not be refunded
		return open(t, shop, func(o *Options) {
			o.Store, o.Corrections, o.Shared, o.Token = s.Requests, s.Corrections, true, "0123456789abcdef"
		}), s
	}
	h, s := open()
	other, otherStore := open()
	decided := func() bool { return !h.askWithToken(h.question("/api/x", "192.0.2.9"))[0].Results[0].Local }
	eventually.Until(t, 10*time.Second, "redis decides", decided)
	server.Pause()
	eventually.Until(t, 10*time.Second, "redis is away", func() bool {
		h.askWithToken(h.question("/api/x", "192.0.2.9"))
		other.askWithToken(h.question("/api/x", "192.0.2.9"))
		return s.Redis.Stats().Breaker != redisstore.BreakerClosed && otherStore.Redis.Stats().Breaker != redisstore.BreakerClosed
	})
	ends := func() int {
		return h.counted(`penstock_settlements_total{result="owed"}`) + h.counted(`penstock_settlements_total{result="settled"}`)
	}
	admitted := func(peer, cost string) (n int) {
		for range 20 {
			a := h.askWithToken(h.question("/ai", peer))[0]
			if a.Status != wire.StatusOK || !a.Results[0].Local {
				t.Fatalf("%+v", a)
			}
			if a.Results[0].Denied {
				continue
			}
			n++
			was := ends()
			if a := h.askWithToken(settlementItem(a.Receipt, cost))[0]; a.Status != wire.StatusOK {
				t.Fatalf("%+v", a)
			}
			eventually.Until(t, 10*time.Second, "it is settled", func() bool { return ends() > was })
		}
		return n
	}
	if n := admitted("192.0.2.1", "40"); n != 3 {
		t.Errorf("%d requests of 40 units are admitted of 100", n)
	}
	if n := admitted("192.0.2.2", "1"); n != 20 {
		t.Errorf("%d requests of 1 unit are admitted of 100", n)
	}
	foreign := h.askWithToken(h.question("/ai", "192.0.2.3"))[0]
	other.askWithToken(h.question("/ai", "192.0.2.3"))
	server.Resume()
	eventually.Until(t, 10*time.Second, "redis decides again", decided)
	if a := other.askWithToken(settlementItem(foreign.Receipt, "1"))[0]; a.Status != wire.StatusOK {
		t.Errorf("%+v", a)
	}
	other.b.settling.Stop(time.Minute)
	eventually.Until(t, 10*time.Second, "redis decides for the other bridge", func() bool {
		return !other.askWithToken(h.question("/api/x", "192.0.2.9"))[0].Results[0].Local
	})
	other.askWithToken(h.question("/ai", "192.0.2.3"))
	for peer, want := range map[string]int64{"192.0.2.1": 0, "192.0.2.2": 100 - 20 - 10, "192.0.2.3": 100 - 4*10} {
		a := h.askWithToken(h.question("/ai", peer))[0]
		if a.Status != wire.StatusOK || a.Results[0].Local || a.Results[0].Remaining != want || a.Results[0].Denied != (want == 0) {
			t.Errorf("%s: want %d left: %+v", peer, want, a)
		}
	}
}
