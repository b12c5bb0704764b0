// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"math"
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// fairnessIndex returns the fairness index of the nodes. The index compares what
// fraction of its demand each node got. It is 1 if all fractions are equal, and 1/K if one of K
// nodes got everything.
func (f *figures) fairnessIndex() float64 {
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

// TestFigures checks the table of the package comment: messages per decision including refunds,
// requests lost compared with a call for each request, fairness, and decisions without waiting. A
// message between a node and the store takes half a millisecond.
func TestFigures(t *testing.T) {
	for _, tt := range []struct {
		name      string
		algorithm counter.Algorithm
		count     int64
		demand    float64 // multiples of the limit
		lasts     counter.Micros
		messages  float64 // at most, per decision
		under     float64 // at most, percent
		atOnce    float64 // at least, percent
	}{
		{name: "fixed, below", algorithm: counter.FixedWindow, count: 10_000, demand: 0.95, lasts: 4 * counter.Second, messages: 0.05, under: 0.05, atOnce: 99},
		{name: "fixed, twice", algorithm: counter.FixedWindow, count: 10_000, demand: 2, lasts: 3 * counter.Second, messages: 0.03, under: 0.05, atOnce: 98},
		{name: "fixed, ten times", algorithm: counter.FixedWindow, count: 10_000, demand: 10, lasts: 2 * counter.Second, messages: 0.01, under: 0.05, atOnce: 98},
		{name: "sliding, below", algorithm: counter.SlidingWindow, count: 10_000, demand: 0.95, lasts: 4 * counter.Second, messages: 0.13, under: 0.05, atOnce: 98},
		{name: "sliding, twice", algorithm: counter.SlidingWindow, count: 10_000, demand: 2, lasts: 3 * counter.Second, messages: 0.08, under: 0.2, atOnce: 90},
		{name: "sliding, ten times", algorithm: counter.SlidingWindow, count: 10_000, demand: 10, lasts: 4 * counter.Second, messages: 0.015, under: 0.1, atOnce: 95},
		{name: "bucket, below", algorithm: counter.TokenBucket, count: 10_000, demand: 0.95, lasts: 4 * counter.Second, messages: 0.13, under: 0.05, atOnce: 98},
		{name: "bucket, twice", algorithm: counter.TokenBucket, count: 10_000, demand: 2, lasts: 3 * counter.Second, messages: 0.08, under: 2, atOnce: 90},
		{name: "bucket, ten times", algorithm: counter.TokenBucket, count: 10_000, demand: 10, lasts: 4 * counter.Second, messages: 0.015, under: 2, atOnce: 95},
		{name: "cold", algorithm: counter.SlidingWindow, count: 10_000, demand: 0.02, lasts: 20 * counter.Second, messages: 1.02},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := scene{limit: must(counter.NewLimit(tt.algorithm, tt.count, counter.Second, 0)), nodes: 20, rtt: 500, lasts: tt.lasts,
				traffic: traffic{demand: tt.demand}}
			f := newWorld(s, 1).simulate()
			s.exact = true
			exact := newWorld(s, 1).simulate()
			under := 100 * float64(exact.admitted-f.admitted) / float64(exact.admitted)
			atOnce := 100 * float64(f.atOnce) / float64(f.decisions)
			t.Logf("%.4f messages for each decision, %.2f %% less admitted, Jain %.4f (exact %.4f), %.1f %% at once, at most %.1f %% of the limit in hand",
				f.perDecision(), under, f.fairnessIndex(), exact.fairnessIndex(), atOnce, 100*float64(f.mostHeld)/float64(tt.count))
			if f.perDecision() > tt.messages || under > tt.under || atOnce < tt.atOnce || f.fairnessIndex() < 0.97 {
				t.Errorf("want at most %.2f messages and %.2f %% less, at least %.0f %% at once, Jain 0.97", tt.messages, tt.under, tt.atOnce)
			}
			if f.calls > exact.calls {
				t.Errorf("%d calls, %d without leases", f.calls, exact.calls)
			}
		})
	}
}

// TestFiftyTimesFewerCalls counts the calls and refunds of two nodes under one hot limit, with a
// demand below the limit, at the limit, and at two and ten times the limit. Where the store denies
// some of the requests, no more units are lost than documented.
func TestFiftyTimesFewerCalls(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.FixedWindow, counter.SlidingWindow, counter.TokenBucket} {
		for _, demand := range []float64{0.5, 0.95, 2, 10} {
			s := scene{limit: must(counter.NewLimit(algorithm, 10_000, counter.Second, 0)), nodes: 2, rtt: 300, lasts: 3 * counter.Second,
				traffic: traffic{demand: demand}}
			f := newWorld(s, 1).simulate()
			s.exact = true
			exact := newWorld(s, 1).simulate()
			fewer := 1 / f.perDecision()
			under := 100 * float64(exact.admitted-f.admitted) / float64(exact.admitted)
			t.Logf("%v at %v times the limit: %.0f times fewer calls, %.2f %% less admitted", algorithm, demand, fewer, under)
			if fewer < 50 || under > 2 || algorithm != counter.TokenBucket && under > 0.2 || demand < 1 && under > 0 {
				t.Error("want fifty times fewer, and all but 2 % of a bucket, 0.2 % of a window, and nothing below the limit")
			}
		}
	}
}

// TestAColdCounter: with fewer than ten requests a second on each node, each request makes one
// call, and no units are held.
func TestAColdCounter(t *testing.T) {
	for _, l := range []counter.Limit{fixed, sliding, bucket} {
		w := newWorld(scene{limit: l, nodes: 2, rtt: 500, lasts: 10 * counter.Second, traffic: traffic{shape: constant, demand: 0.018}}, 1)
		f := w.simulate()
		if f.calls != f.decisions || f.decisions < 170 || f.givebacks != 0 || f.mostHeld != 0 {
			t.Errorf("%v: %d calls for %d decisions, %d give-backs, %d units in hand", l.Algorithm(), f.calls, f.decisions, f.givebacks, f.mostHeld)
		}
	}
}

// TestAThousandAtOnce: a thousand concurrent requests make two calls, one for the first request and
// one for all others.
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

// TestHandoff: one node uses nearly all of a limit and stops. Within the age of one lease, the
// node's held units are available to the other nodes. After one more such age, they are used up.
// After that, each node makes one call a second.
func TestHandoff(t *testing.T) {
	const silence, most = begins + 970*ms, 30 * counter.Second
	w := newWorld(scene{limit: must(counter.NewLimit(counter.FixedWindow, 1000, counter.Minute, 0)), nodes: 5, rtt: 500}, 1)
	w.slot.State.At = begins - begins%counter.Minute
	for i := range counter.Micros(970) {
		w.at(begins+i*ms, func() { w.request(0, 1) })
	}
	for i := counter.Micros(0); i*10*ms < most; i++ {
		for node := 1; node < 5; node++ {
			w.at(silence+i*10*ms, func() { w.request(node, 1) })
		}
	}
	var calls int64
	w.at(silence+counter.Second, func() { calls = w.figures.calls })
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

// TestShares: each of K nodes requests far more than its share of an unused limit. Together they
// take at most half of the limit in advance, and 1 - e^-½ of it if there are many nodes. Waiting
// requests are served first.
func TestShares(t *testing.T) {
	for _, nodes := range []int{1, 2, 5, 20, 100} {
		slot, taken := counter.Slot{}, int64(0)
		l := must(counter.NewLimit(counter.FixedWindow, 1_000_000, counter.Second, 0))
		for range nodes {
			c := Counter{rates: rates{span: horizon, used: 1000, everybody: float64(nodes) * 1000 / float64(horizon)}}
			check := counter.Check{Limit: &l, Op: counter.OpUpTo, Cost: 3, Min: 1, Max: l.Count(), ShareMille: c.shareMille(0)}
			slots, results := []counter.Slot{slot}, make([]counter.Result, 1)
			counter.Decide(begins, []counter.Check{check}, slots, results)
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
