// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core"
)

// mistake is one that whoever drives a counter could make. The model must notice each.
type mistake uint8

const (
	faithful       mistake = iota
	usesLost               // what a call without an answer may have granted is used
	datesByReply           // deadlines count from the reply
	repeatsReturns         // some give-backs are sent twice
	returnsToNow           // a give-back goes to the window that the store is in
	leasesUnpaid           // the store is not told that units are leased
	keepsReturned          // what is given back is used all the same
)

func (w *world) mistakenly(n *node, a *Asking) {
	if w.mistake == usesLost {
		n.counter.keep(w.clock(n), slot{units: a.Max, until: w.clock(n) + core.Second})
	}
}

func (w *world) kept(n *node, b GiveBack) {
	if w.mistake == keepsReturned && w.now < begins+w.lasts {
		n.counter.keep(w.clock(n), slot{units: b.Units, until: w.clock(n) + 100*core.Millisecond, receipt: b.Receipt, age: b.Age})
	}
}

func (w *world) misdated(n *node, a *Asking) {
	if w.mistake == datesByReply {
		a.sent = w.clock(n)
	}
}

func (w *world) mistaken(check *core.Check) {
	if w.mistake == leasesUnpaid {
		check.Age = 0
	}
}

func (w *world) timesSent(check *core.Check) int {
	switch w.mistake {
	case repeatsReturns:
		return 1 + w.rng.IntN(2)
	case leasesUnpaid:
		check.Age = 0
	case returnsToNow:
		check.Receipt = w.slot.State.At
	}
	return 1
}

// TestTheModelNoticesMistakes has whoever drives the counters break the rules, one after the other, in scenes that make it
// show: each must lead to more than the algorithm allows, and the same scene without the mistake must not.
func TestTheModelNoticesMistakes(t *testing.T) {
	window := func(a core.Algorithm) core.Limit { return must(core.NewLimit(a, 1000, core.Second, 0)) }
	for _, tt := range []struct {
		name    string
		mistake mistake
		scene   scene
	}{
		{"what a lost answer granted is used", usesLost, scene{limit: window(core.FixedWindow), lose: 0.2}},
		{"deadlines count from the reply, fixed", datesByReply, scene{limit: window(core.FixedWindow), rtt: 50_000,
			traffic: traffic{shape: ramp}}},
		{"deadlines count from the reply, sliding", datesByReply, scene{limit: window(core.SlidingWindow), rtt: 50_000}},
		{"a give-back is repeated, fixed", repeatsReturns, scene{limit: window(core.FixedWindow), traffic: traffic{shape: idleBurst}}},
		{"a give-back is repeated, bucket", repeatsReturns, scene{limit: must(core.NewLimit(core.TokenBucket, 200, core.Second, 4000)),
			traffic: traffic{shape: idleBurst, demand: 20}}},
		{"a give-back goes to the present window", returnsToNow, scene{limit: window(core.FixedWindow), slow: 0.5, slowest: core.Second,
			traffic: traffic{shape: idleBurst}}},
		{"what is given back is kept, fixed", keepsReturned, scene{limit: window(core.FixedWindow), traffic: traffic{shape: idleBurst}}},
		{"what is given back is kept, sliding", keepsReturned, scene{limit: window(core.SlidingWindow), traffic: traffic{shape: idleBurst}}},
		{"leases are not paid for", leasesUnpaid, scene{limit: must(core.NewLimit(core.TokenBucket, 10_000, core.Second, 0)),
			traffic: traffic{shape: flash, demand: 5}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, noticed := tt.scene, 0
			s.nodes, s.lasts = 10, 4*core.Second
			s.rtt, s.traffic.demand = max(s.rtt, 500), max(s.traffic.demand, 2)
			for seed := range uint64(5) {
				s.mistake = faithful
				w := newWorld(s, seed)
				if w.play(); w.excess() > 0 {
					t.Fatalf("seed %d: %d units over without the mistake", seed, w.excess())
				}
				s.mistake = tt.mistake
				w = newWorld(s, seed)
				if w.play(); w.excess() > 0 {
					noticed++
				}
			}
			if noticed < 3 {
				t.Errorf("noticed with %d seeds of 5", noticed)
			}
		})
	}
}
