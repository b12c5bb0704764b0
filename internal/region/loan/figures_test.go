// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/racescale"
)

// traffic is how requests are spread over regions.
type traffic struct {
	name   string
	demand float64 // as a multiple of the limit
	region func(rng *rand.Rand, since time.Duration, regions int) int
}

func evenly(rng *rand.Rand, _ time.Duration, regions int) int { return rng.IntN(regions) }

func mostlyOne(rng *rand.Rand, _ time.Duration, regions int) int {
	if rng.IntN(10) > 0 {
		return 0
	}
	return 1 + rng.IntN(regions-1)
}

func moving(_ *rand.Rand, since time.Duration, regions int) int {
	return int(since/(5*time.Second)) % regions
}

// The figures are measured with four regions of equal shares. A message from one region to another
// and its answer take 200 ms together.
const (
	figureRegions = 4
	figureLimit   = "12000/1m"
	figureTrip    = 200 * time.Millisecond
)

// batching is a store in memory that implements [counter.Batcher].
type batching struct{ *memstore.Store }

func (b batching) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		calls[i].Err = b.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// figures are the results of a simulated run, in requests.
type figures struct {
	arrived, admitted, alone int // alone: by one counter without regions
	messages                 atomic.Int64
}

// traffic.run simulates the traffic, with real agents and simulated time.
func (traffic traffic) run(t *testing.T, windows int) *figures {
	t.Helper()
	f := new(figures)
	limit, err := counter.ParseLimit(figureLimit)
	if err != nil {
		t.Fatal(err)
	}
	now := func() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }
	open := func() *memstore.Store {
		store, err := memstore.New(memstore.Options{Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	key := []byte("rl1:n:r:{c}" + counter.KeyTail(&limit))
	ctx, cancel := context.WithCancel(t.Context())
	agents, fronts, parts := make([]*Agent, figureRegions), make([]*regionstore.Store, figureRegions), make([]counter.Limit, figureRegions)
	for i := range agents {
		var d policy.Division
		for j := range figureRegions {
			d.Shares[j] = 1
		}
		d.Self = uint8(i)
		parts[i], _ = d.Limit(&limit)
		store := open()
		defer store.Close()
		agents[i] = New(Options{Store: store, Policy: func() Policy { return Policy{Namespace: "rl1:n:", Here: d} },
			Publish: func(context.Context, []byte) error { return nil }, Logger: slog.New(slog.DiscardHandler)})
		fronts[i] = regionstore.New(batching{store}, regionstore.Agency{Publish: func(_ context.Context, message []byte) (int64, error) {
			agents[i].hear(ctx, string(message))
			return 1, nil
		}}, nil)
	}
	for _, a := range agents {
		for j, other := range agents {
			if other != a {
				a.o.Peers = append(a.o.Peers, &Peer{Name: fmt.Sprint(j), send: over(other, f)})
			}
		}
	}
	one := open()
	defer one.Close()
	rng, begin := rand.New(rand.NewPCG(1, 2)), time.Now()
	pause := float64(limit.Window()) * float64(time.Microsecond) / (traffic.demand * float64(limit.Count()))
	for time.Since(begin) < time.Duration(windows)*time.Duration(limit.Window())*time.Microsecond {
		time.Sleep(time.Duration(rng.ExpFloat64() * pause))
		i := traffic.region(rng, time.Since(begin), figureRegions)
		f.arrived++
		f.admitted += taken(t, fronts[i], counter.Check{Key: key, Limit: &parts[i], WholeLimit: &limit, Cost: 1})
		f.alone += taken(t, one, counter.Check{Key: key, Limit: &limit, Cost: 1})
	}
	for _, front := range fronts {
		front.Close()
	}
	for _, a := range agents {
		a.running.Wait()
	}
	cancel()
	return f
}

// over returns the function that sends messages to the other agent. A message and its answer take
// figureTrip together.
func over(other *Agent, f *figures) func(ctx context.Context, path string, message any) (Loan, error) {
	return func(ctx context.Context, _ string, message any) (l Loan, err error) {
		f.messages.Add(2)
		time.Sleep(figureTrip / 2)
		switch m := message.(type) {
		case *Question:
			l, err = other.lend(ctx, m)
		case *returned:
			l, err = other.takeBack(ctx, m)
		}
		time.Sleep(figureTrip / 2)
		return l, err
	}
}

func taken(t *testing.T, store counter.Store, c counter.Check) int {
	t.Helper()
	var results [1]counter.Result
	if err := store.Take(context.Background(), []counter.Check{c}, results[:]); err != nil {
		t.Fatal(err)
	}
	if results[0].Denied {
		return 0
	}
	return 1
}

// TestFigures tests and prints the cost of loans: how many requests are denied although one counter
// would have admitted them. No request waits. All other requests are decided as one counter would
// decide them, without a call to another region.
func TestFigures(t *testing.T) {
	for _, c := range []struct {
		traffic
		most float64 // percent
	}{
		{traffic{"even, 0.95 × the limit", 0.95, evenly}, 2},
		{traffic{"nine tenths in one region, 0.95 ×", 0.95, mostlyOne}, 2},
		{traffic{"moves, 0.95 ×", 0.95, moving}, 10},
		{traffic{"even, 2 ×", 2, evenly}, 2},
		{traffic{"moves, 2 ×", 2, moving}, 10},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := c.run(t, 1+racescale.Fewer(3))
			under := 100 * float64(f.alone-f.admitted) / float64(f.alone)
			t.Logf("| %s | %.2f %% under | %.4f messages per request |", c.name, under, float64(f.messages.Load())/float64(f.arrived))
			if under < -0.1 || under > c.most {
				t.Errorf("%s: %d of %d were admitted, one counter admits %d", c.name, f.admitted, f.arrived, f.alone)
			}
		})
	}
}
