// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"math"
	"testing"

	"github.com/penstock/penstock/core"
)

// jain is how evenly the nodes were served, by what each got of what it asked for: 1 is evenly, 1/K is one node only.
func (f *figures) jain() float64 {
	var sum, squares, nodes float64
	for i, asked := range f.asked {
		if asked >= 20 {
			part := float64(f.got[i]) / float64(asked)
			sum, squares, nodes = sum+part, squares+part*part, nodes+1
		}
	}
	return sum * sum / (nodes * squares)
}

func (f *figures) perDecision() float64 { return float64(f.calls+f.givebacks) / float64(f.decisions) }

// TestFigures holds what the package comment says against what twenty nodes measure half a millisecond away from their
// store: messages to it for each decision, give-backs among them; what is admitted less than by a store that is asked every
// time, of the same requests; how evenly the nodes are served; decisions without waiting.
func TestFigures(t *testing.T) {
	for _, tt := range []struct {
		name      string
		algorithm core.Algorithm
		count     int64
		demand    float64 // times the limit
		lasts     core.Micros
		messages  float64 // at most, for each decision
		under     float64 // at most, in percent
		atOnce    float64 // at least, in percent
	}{
		{"fixed, below", core.FixedWindow, 10_000, 0.95, 4 * core.Second, 0.05, 0.05, 99},
		{"fixed, twice", core.FixedWindow, 10_000, 2, 3 * core.Second, 0.03, 0.05, 98},
		{"fixed, ten times", core.FixedWindow, 10_000, 10, 2 * core.Second, 0.01, 0.05, 98},
		{"sliding, below", core.SlidingWindow, 10_000, 0.95, 4 * core.Second, 0.13, 0.05, 98},
		{"sliding, twice", core.SlidingWindow, 10_000, 2, 3 * core.Second, 0.08, 0.2, 90},
		{"sliding, ten times", core.SlidingWindow, 10_000, 10, 4 * core.Second, 0.015, 0.1, 95},
		{"bucket, below", core.TokenBucket, 10_000, 0.95, 4 * core.Second, 0.13, 0.05, 98},
		{"bucket, twice", core.TokenBucket, 10_000, 2, 3 * core.Second, 0.08, 2, 90},
		{"bucket, ten times", core.TokenBucket, 10_000, 10, 4 * core.Second, 0.015, 2, 95},
		{"cold", core.SlidingWindow, 10_000, 0.02, 20 * core.Second, 1.02, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := scene{limit: must(core.NewLimit(tt.algorithm, tt.count, core.Second, 0)), nodes: 20, rtt: 500, lasts: tt.lasts,
				traffic: traffic{demand: tt.demand}}
			f := newWorld(s, 1).play()
			s.exact = true
			exact := newWorld(s, 1).play()
			under := 100 * float64(exact.admitted-f.admitted) / float64(exact.admitted)
			atOnce := 100 * float64(f.atOnce) / float64(f.decisions)
			t.Logf("%.4f messages for each decision, %.2f %% less admitted, Jain %.4f (exact %.4f), %.1f %% at once, at most %.1f %% of the limit in hand",
				f.perDecision(), under, f.jain(), exact.jain(), atOnce, 100*float64(f.mostHeld)/float64(tt.count))
			if f.perDecision() > tt.messages || under > tt.under || atOnce < tt.atOnce || f.jain() < 0.97 {
				t.Errorf("want at most %.2f messages and %.2f %% less, at least %.0f %% at once, Jain 0.97", tt.messages, tt.under, tt.atOnce)
			}
			if f.calls > exact.calls {
				t.Errorf("%d calls, %d without leases", f.calls, exact.calls)
			}
		})
	}
}

// TestFiftyTimesFewerCalls of two nodes under one hot limit: below it, at it, twice and ten times over it, give-backs counted.
// Where the store refuses some of them, no more is lost than is said.
func TestFiftyTimesFewerCalls(t *testing.T) {
	for _, algorithm := range []core.Algorithm{core.FixedWindow, core.SlidingWindow, core.TokenBucket} {
		for _, demand := range []float64{0.5, 0.95, 2, 10} {
			s := scene{limit: must(core.NewLimit(algorithm, 10_000, core.Second, 0)), nodes: 2, rtt: 300, lasts: 3 * core.Second,
				traffic: traffic{demand: demand}}
			f := newWorld(s, 1).play()
			s.exact = true
			exact := newWorld(s, 1).play()
			fewer := 1 / f.perDecision()
			under := 100 * float64(exact.admitted-f.admitted) / float64(exact.admitted)
			t.Logf("%v at %v times the limit: %.0f times fewer calls, %.2f %% less admitted", algorithm, demand, fewer, under)
			if fewer < 50 || under > 2 || algorithm != core.TokenBucket && under > 0.2 || demand < 1 && under > 0 {
				t.Error("want fifty times fewer, and all but 2 % of a bucket, 0.2 % of a window, and nothing below the limit")
			}
		}
	}
}

// TestAColdCounter is as without a lease: fewer than ten requests a second leave nothing in hand and ask once each.
func TestAColdCounter(t *testing.T) {
	for _, l := range []core.Limit{fixed, sliding, bucket} {
		w := newWorld(scene{limit: l, nodes: 2, rtt: 500, lasts: 10 * core.Second, traffic: traffic{shape: constant, demand: 0.018}}, 1)
		f := w.play()
		if f.calls != f.decisions || f.decisions < 170 || f.givebacks != 0 || f.mostHeld != 0 {
			t.Errorf("%v: %d calls for %d decisions, %d give-backs, %d units in hand", l.Algorithm(), f.calls, f.decisions, f.givebacks, f.mostHeld)
		}
	}
}

// TestAThousandAtOnce makes two calls: one for the first, one for all who came meanwhile.
func TestAThousandAtOnce(t *testing.T) {
	for _, demand := range []int64{1000, 1500} {
		w := newWorld(scene{limit: fixed, nodes: 1, rtt: 500}, 1)
		for range demand {
			w.at(begins+1, func() { w.request(0, 1) })
		}
		w.run()
		if f := w.figures; f.calls != 2 || f.admitted != 1000 || f.denied != demand-1000 {
			t.Errorf("%d at once: %d calls, %d admitted, %d denied", demand, f.calls, f.admitted, f.denied)
		}
	}
}

// TestHandoff has one node take nearly all of a limit and fall silent. What it holds is the others' within the age of a
// lease, and used within another one; when all is gone each asks once a second.
func TestHandoff(t *testing.T) {
	const silence, most = begins + 970*ms, 30 * core.Second
	w := newWorld(scene{limit: must(core.NewLimit(core.FixedWindow, 1000, core.Minute, 0)), nodes: 5, rtt: 500}, 1)
	w.slot.State.At = begins - begins%core.Minute
	for i := range core.Micros(970) {
		w.at(begins+i*ms, func() { w.request(0, 1) })
	}
	for i := core.Micros(0); i*10*ms < most; i++ {
		for node := 1; node < 5; node++ {
			w.at(silence+i*10*ms, func() { w.request(node, 1) })
		}
	}
	var calls int64
	w.at(silence+core.Second, func() { calls = w.figures.calls })
	w.run()
	if w.figures.admitted != 1000 {
		t.Errorf("%d units admitted, want 1000", w.figures.admitted)
	}
	if last := w.uses[len(w.uses)-1].at - silence; last > 2*(ageMin+2*w.rtt) {
		t.Errorf("the last unit was used after %v", last)
	}
	if calls = w.figures.calls - calls; calls > 4*29 {
		t.Errorf("%d calls in the 29 seconds after that, by 4 nodes", calls)
	}
}

// TestShares has every node of K ask for its share in advance, and much more, of a limit that is whole: together they take
// no more than half of it, with many nodes 1 - e^-½, and what requests need comes before that.
func TestShares(t *testing.T) {
	for _, nodes := range []int{1, 2, 5, 20, 100} {
		slot, taken := core.Slot{}, int64(0)
		l := must(core.NewLimit(core.FixedWindow, 1_000_000, core.Second, 0))
		for range nodes {
			c := Counter{rates: rates{span: horizon, used: 1000, everybody: float64(nodes) * 1000 / float64(horizon)}}
			check := core.Check{Limit: &l, Op: core.OpUpTo, Cost: 3, Min: 1, Max: l.Count(), ShareMille: c.shareMille(0)}
			slots, results := []core.Slot{slot}, make([]core.Result, 1)
			core.Decide(begins, []core.Check{check}, slots, results)
			slot = slots[0]
			if taken += results[0].Granted - 3; results[0].Granted < 3 {
				t.Errorf("granted %d of 3 that were needed", results[0].Granted)
			}
		}
		if most := 1_000_000 * (1 - math.Pow(1-0.5/float64(nodes), float64(nodes))); float64(taken) > most {
			t.Errorf("%d nodes took %d in advance, more than %.0f", nodes, taken, most)
		}
	}
}
