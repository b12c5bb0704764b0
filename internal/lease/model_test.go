// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// eventsInRound is the number of events in one round of the model: requests, messages, node deaths
// and ticks.
const eventsInRound = 10_000_000

// TestNeverOver simulates random scenes with every kind of fault. The usage must never exceed what
// the algorithm allows. The test simulates one scene, or PENSTOCK_ROUNDS of them. Each scene's seed
// is one more than that of the scene before it.
func TestNeverOver(t *testing.T) {
	first := seed.First(t)
	for round := range seed.Rounds(t, 1) {
		t.Run(fmt.Sprintf("seed %d", first+round), func(t *testing.T) { playRound(t, first+round) })
	}
}

func playRound(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	scenes, leased, most := 0, 0, racescale.Long(eventsInRound)
	for events := 0; events < most; scenes++ {
		s := randomScene(rng, scenes)
		w := newWorld(s, rng.Uint64())
		f := w.simulate()
		events += w.serial
		if over := w.excess(); over > 0 {
			t.Errorf("scene %d: %d units over: %s", scenes, over, s.describe())
		}
		mayGo := int64(0)
		// The charges of a bucket are refunded separately, and a counter drops the smallest refunds
		// if there are too many.
		if s.limit.Algorithm() == counter.TokenBucket {
			mayGo = f.granted/10 + 20
			if fills := s.limit.Capacity() * int64(s.limit.Window()) / s.limit.Count(); fills < int64(8*TickEvery) {
				// All granted units may be lost: such a bucket refills an eighth of its capacity
				// within a tick.
				mayGo = f.granted
			}
		}
		if gone := f.granted - f.admitted - f.returned; s.crash == 0 && (gone < 0 || gone > mayGo) {
			t.Errorf("scene %d: %d of %d units neither used nor given back: %s", scenes, gone, f.granted, s.describe())
		}
		if f.decisions > 100 && f.calls < f.decisions/2 {
			leased++
		}
	}
	if leased < scenes/8 {
		t.Errorf("only %d of %d scenes made fewer calls than half their decisions: they do not test leases", leased, scenes)
	}
	if t.Failed() {
		t.Logf("repeat with make simulate SEED=%d ROUNDS=1", seed)
	}
}

// randomScene returns the scene with the number i. The numbers determine the shape of the traffic,
// and the algorithm or calendar window. Everything else is random.
func randomScene(rng *rand.Rand, i int) scene {
	window := counter.Micros(1+rng.IntN(5)) * 500 * counter.Millisecond
	s := scene{
		nodes:   1 + rng.IntN(12),
		rtt:     counter.Micros(50 << rng.IntN(11)),
		traffic: traffic{shape(i/4) % shapes, 0.2 + 4*rng.Float64()*rng.Float64(), 1 + rng.Int64N(3)},
		slowest: window * 2,
		drift:   0.0008,
	}
	count, burst := int64(20)<<rng.IntN(9), int64(0)
	algorithm := counter.Algorithm(0)
	switch i % 4 {
	case 0:
		algorithm = counter.FixedWindow
	case 1:
		algorithm = counter.SlidingWindow
	case 2:
		algorithm, burst = counter.TokenBucket, 2+rng.Int64N(2*count)
	case 3:
		s.period = window
		s.limit = must(counter.ParseLimit(strconv.FormatInt(count, 10) + "/day"))
		s.lower = must(counter.ParseLimit(strconv.FormatInt(count/2, 10) + "/day"))
	}
	if algorithm != 0 {
		s.limit = must(counter.NewLimit(algorithm, count, window, burst))
		s.lower = must(counter.NewLimit(algorithm, count/2, window, burst/2))
	}
	if rng.IntN(4) == 0 {
		s.lowered = 0.2 * rng.Float64() * rng.Float64()
	}
	s.lasts = 4 * window
	for _, part := range []*float64{&s.lose, &s.slow, &s.crowded, &s.refunded} {
		if rng.IntN(2) == 0 {
			*part = 0.3 * rng.Float64() * rng.Float64()
		}
	}
	// The bucket might have refilled since the charge, but a settlement is credited in full.
	if s.limit.Algorithm() == counter.TokenBucket {
		s.refunded = 0
	}
	if rng.IntN(2) == 0 {
		s.patience = s.rtt + counter.Micros(rng.Int64N(int64(4*s.rtt)))
	}
	if rng.IntN(2) == 0 {
		s.crash = 50 * counter.Millisecond
	}
	return s
}

func (s *scene) describe() string {
	return fmt.Sprintf("%v %v %d/%v burst %d, period %v, %d nodes, %.2f times the limit, cost 1-%d, rtt %v, crash %v, lost %.3f, slow %.3f, crowded %.3f, lowered %.3f, refunded %.3f, patience %v",
		shapeNames[s.traffic.shape], s.limit.Algorithm(), s.limit.Count(), s.limit.Window(), s.limit.Capacity(), s.period, s.nodes,
		s.traffic.demand, s.traffic.most, s.rtt, s.crash, s.lose, s.slow, s.crowded, s.lowered, s.refunded, s.patience)
}

func must(l counter.Limit, err error) counter.Limit {
	if err != nil {
		panic(err)
	}
	return l
}
