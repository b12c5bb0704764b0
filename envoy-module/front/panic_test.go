// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/enforce/settle"
)

// panickingStore is a store that panics.
type panickingStore struct{}

func (panickingStore) Take(context.Context, []counter.Check, []counter.Result) error {
	panic("provoked")
}

// TestAPanicInASettlementEndsWithItsConfiguration tests a panic while a charge is corrected. The
// panic is counted, and the configuration and its store can still be closed.
func TestAPanicInASettlementEndsWithItsConfiguration(t *testing.T) {
	f := openedIn(t, NewProcess(slog.New(slog.DiscardHandler)), "name: shop\nrules: [{name: all, limit: 100/31d, cost_after: {estimate: 5, header: X-Cost, default: 1}}]\n")
	ended := make(chan settle.End, 1)
	f.store.settler = settle.New(panickingStore{}, func(end settle.End) { ended <- end })
	f.store.settler.Panic = f.process.countPanic
	s := f.NewStream()
	s.Headers = append(s.Headers, request("/")...)
	if v := s.Decide(client, emptyHost{}, newBell()); v != Continue {
		t.Fatalf("verdict %d", v)
	}
	settling := s.Settling()
	s.Release()
	settling.Begin(&Beginning{Headers: [][2]string{{":status", "200"}, {"x-cost", "2"}}, Ends: true, Complete: true, Details: "via_upstream"})
	settling.End()
	if end := <-ended; end != settle.Panicked {
		t.Errorf("the settlement ends as %q", end)
	}
	closed := make(chan error)
	go func() { closed <- f.Close() }()
	select {
	case err := <-closed:
		if err != nil || len(f.process.stores) != 0 || f.process.Panics() != 1 {
			t.Errorf("%v, %d stores are open, %d panics", err, len(f.process.stores), f.process.Panics())
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the configuration does not end")
	}
}
