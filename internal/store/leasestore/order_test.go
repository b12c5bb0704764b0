// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// TestDeniedRequestsTakeNoSharedUnits: a client sends many more requests at once than its own limit
// admits, and than a limit that all clients share has units. The requests over its own limit take
// no units of the shared limit, so no other client is denied. This holds whether the client's own
// limit is the smaller one, or is known to be used up.
func TestDeniedRequestsTakeNoSharedUnits(t *testing.T) {
	for _, text := range []string{"500/1h fixed_window", "500/1h", "500/1h burst 500"} {
		for _, own := range []int64{5, 1000} {
			t.Run(fmt.Sprint(text, " and ", own), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testDeniedRequests(t, limittest.New(t, text), own) })
			})
		}
	}
}

func testDeniedRequests(t *testing.T, shared *counter.Limit, own int64) {
	const burst, others = 2_000, 50
	f, limit, attacker, books := newFar(t, time.Millisecond), limittest.New(t, fmt.Sprintf("%d/1d fixed_window", own)), &ledger{}, &ledger{}
	s := f.node(Options{})
	everyone := leasedOf("everyone", shared, 1)
	admits := own
	if own > shared.Capacity() {
		_ = attacker.ask(s, leasedOf("attacker", limit, own))
		_ = attacker.ask(s, leasedOf("attacker", limit, 1))
		admits = 0
	}
	used := attacker.admitted["attacker"]
	var all sync.WaitGroup
	for range burst {
		all.Go(func() { _ = attacker.ask(s, everyone, leasedOf("attacker", limit, 1)) })
	}
	for i := range others {
		all.Go(func() {
			time.Sleep(time.Duration(i) * 100 * time.Microsecond)
			_ = books.ask(s, everyone, leasedOf(fmt.Sprint("other-", i), limit, 1))
		})
	}
	all.Wait()
	if n := attacker.admitted["attacker"] - used; n != admits || attacker.failed > 0 {
		t.Errorf("%d of the burst were admitted, want %d; %d failed", n, admits, attacker.failed)
	}
	if books.denied+books.failed > 0 {
		t.Errorf("of %d requests of others, %d were denied and %d failed", others, books.denied, books.failed)
	}
	if most := admits + others + shared.Capacity()/10; f.charged["everyone"] > most {
		t.Errorf("%d units of the shared limit were charged, want at most %d", f.charged["everyone"], most)
	}
	f.close(s)
}
