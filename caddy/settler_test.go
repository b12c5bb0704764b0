// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock/penstock/core"
)

// counted returns what a metric has counted under a label's value.
func counted(t *testing.T, metric prometheus.Collector, value string) (sum float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(metric); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetValue() == value {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// slowStore answers a second after it was asked, or not before a time, or with an error.
type slowStore struct {
	takes atomic.Int64
	fails error
	until time.Time
}

func (s *slowStore) Take(context.Context, []core.Check, []core.Result) error {
	time.Sleep(max(time.Second, time.Until(s.until)))
	s.takes.Add(1)
	return s.fails
}

// settling sends so many settlements to a settler of the store.
func settling(store core.Store, n int) *settler {
	s := newSettler(store)
	for range n {
		s.send(&settlement{checks: make([]core.Check, 1)})
	}
	return s
}

func TestSettlementsAreDoneBeforeTheStoreCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := counted(t, settlementsTotal, settlementSettled)
		store := &slowStore{}
		start := time.Now()
		if s := settling(store, 40); !s.stop(settleDeadline) {
			t.Error("not drained")
		}
		if got := counted(t, settlementsTotal, settlementSettled) - before; got != 40 || store.takes.Load() != 40 {
			t.Errorf("%v settled, and the store was asked %d times; want 40", got, store.takes.Load())
		}
		if took := time.Since(start); took != 3*time.Second { // 40 by 16 workers, a second each
			t.Errorf("it took %s", took)
		}
	})
}

func TestAHangingStoreDelaysNoStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := settling(&slowStore{until: start.Add(time.Hour)}, 1)
		if s.stop(settleDeadline) {
			t.Error("drained")
		}
		if took := time.Since(start); took != settleDeadline {
			t.Errorf("stopped after %s, want %s", took, settleDeadline)
		}
		time.Sleep(2 * time.Hour) // until the store answers, which takes no time here
	})
}

func TestTooManySettlementsAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := counted(t, settlementsTotal, settlementDropped)
		store := &slowStore{}
		s := settling(store, settlersCount)
		synctest.Wait() // the workers have one each
		for range settlementsMax + 5 {
			s.send(&settlement{checks: make([]core.Check, 1)})
		}
		if got := counted(t, settlementsTotal, settlementDropped) - before; got != 5 {
			t.Errorf("%v dropped, want 5", got)
		}
		if !s.stop(time.Hour) || store.takes.Load() != settlersCount+settlementsMax {
			t.Errorf("the store was asked %d times", store.takes.Load())
		}
		s.send(&settlement{checks: make([]core.Check, 1)})
		if got := counted(t, settlementsTotal, settlementDropped) - before; got != 6 {
			t.Errorf("%v dropped, want one more after the stop", got)
		}
	})
}

func TestAFailedSettlementIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := counted(t, settlementsTotal, settlementFailed)
		store := &slowStore{fails: errors.New("no answer")}
		settling(store, 3).stop(settleDeadline)
		if got := counted(t, settlementsTotal, settlementFailed) - before; got != 3 || store.takes.Load() != 3 {
			t.Errorf("%v failed and the store was asked %d times, want 3", got, store.takes.Load())
		}
	})
}

func TestNothingToSettleStopsAtOnce(t *testing.T) {
	if s := newSettler(&slowStore{}); !s.stop(time.Nanosecond) && !s.stop(time.Second) {
		t.Error("workers that never started are waited for")
	}
}

// TestNoSettlementIsLostWhenAStoreCloses: each that is sent while a settler stops is settled or counted as dropped.
func TestNoSettlementIsLostWhenAStoreCloses(t *testing.T) {
	const rounds, senders, each = 500, 4, 200
	sum := func() float64 {
		return counted(t, settlementsTotal, settlementSettled) + counted(t, settlementsTotal, settlementDropped)
	}
	before := sum()
	for range rounds {
		s := newSettler(quickStore{})
		var sending sync.WaitGroup
		halfway := make(chan struct{}, senders)
		for range senders {
			sending.Go(func() {
				for i := range each {
					if i == each/2 {
						halfway <- struct{}{}
					}
					s.send(&settlement{checks: make([]core.Check, 1)})
				}
			})
		}
		<-halfway
		s.stop(settleDeadline)
		sending.Wait()
	}
	if got := sum() - before; got != rounds*senders*each {
		t.Errorf("%v settled or dropped of %d", got, rounds*senders*each)
	}
}

// quickStore answers at once.
type quickStore struct{}

func (quickStore) Take(context.Context, []core.Check, []core.Result) error { return nil }
