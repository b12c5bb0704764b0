// SPDX-License-Identifier: Apache-2.0

package leasestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
)

// useTimes holds the instants at which units were used, on the store's clock. For a request that
// makes its own call, the instant is that of the store's decision. For other requests, it is the
// instant at which this process admits them.
type useTimes struct {
	mu sync.Mutex
	at []counter.Micros
}

func (u *useTimes) ask(s *Store, c counter.Check) {
	results := make([]counter.Result, 1)
	if err := s.Take(context.Background(), []counter.Check{c}, results); err != nil || results[0].Denied {
		return
	}
	now := min(results[0].At, counter.Micros(time.Now().UnixMicro()))
	u.mu.Lock()
	defer u.mu.Unlock()
	for range c.Cost {
		u.at = append(u.at, now)
	}
}

// useTimes.excess returns the number of units that were used beyond what the limit's algorithm
// allows. Units that are charged to a bucket for waiting requests are used only when the answer
// arrives, later than the charge.
func (u *useTimes) excess(l *counter.Limit, way counter.Micros) (most int64) {
	slices.Sort(u.at)
	if l.Algorithm() != counter.TokenBucket {
		windows := map[counter.Micros]int64{}
		for _, at := range u.at {
			windows[at/l.Window()]++
			most = max(most, windows[at/l.Window()]-l.Count())
		}
		return most
	}
	level, last := float64(0), u.at[0] // how many units are missing from a bucket of unlimited size
	for _, at := range u.at {
		level = max(0, level-float64(at-last)*float64(l.Count())/float64(l.Window())) + 1
		last = at
		most = max(most, int64(level)-l.Capacity())
	}
	return most - 1 - l.Count()*int64(way)/int64(l.Window())
}

// TestNeverOverInAnyWindow: four nodes that request twice the limit, in bursts and steadily, across
// the ends of windows, never exceed it.
func TestNeverOverInAnyWindow(t *testing.T) {
	seed := seed.First(t)
	for _, text := range []string{"1000/1s fixed_window", "1000/1s", "3000/2s burst 500", "1000/1s burst 1000"} {
		for _, lose := range []float64{0, 0.02} {
			t.Run(fmt.Sprintf("%s lose=%v", text, lose), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					random := rand.New(rand.NewPCG(seed, 0))
					f, l, u := newFar(t, 2*time.Millisecond), limittest.New(t, text), &useTimes{}
					f.lose = lose
					nodes := []*Store{f.node(Options{}), f.node(Options{}), f.node(Options{}), f.node(Options{})}
					var all sync.WaitGroup
					for start := time.Now(); time.Since(start) < 6*time.Second; {
						s, burst := nodes[random.IntN(4)], 1+random.IntN(4)
						if random.IntN(200) == 0 {
							burst = 50
						}
						for range burst {
							all.Go(func() { u.ask(s, leasedOf("a", l, 1+int64(burst)%2)) })
						}
						time.Sleep(time.Duration(random.IntN(2500)) * time.Microsecond)
					}
					all.Wait()
					leased := uint64(0)
					for _, s := range nodes {
						leased += s.Stats().Leased
						f.close(s)
					}
					most := u.excess(l, 2*counter.Millisecond)
					asked, _ := f.calls()
					t.Logf("%d used, %d requests leased, %d calls", len(u.at), leased, asked)
					if most > 0 || leased == 0 {
						t.Errorf("%d units over", most)
					}
				})
			})
		}
	}
}
