// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// mistake is an error that a caller of Counter could make. The simulation must detect each of them.
type mistake uint8

const (
	faithful       mistake = iota
	usesLost               // uses the units of a call that was not answered
	datesByReply           // counts deadlines from the reply
	repeatsReturns         // sends some refunds twice
	returnsToNow           // refunds to the store's current window
	leasesUnpaid           // does not mark units as leased in the call
	keepsReturned          // uses refunded units nevertheless
)

func (w *world) mistakenly(n *node, a *Call) {
	if w.mistake == usesLost {
		n.counter.keep(w.clock(n), slot{units: a.Max, until: w.clock(n) + counter.Second})
	}
}

func (w *world) kept(n *node, b Refund) {
	if w.mistake == keepsReturned && w.now < begins+w.lasts {
		n.counter.keep(w.clock(n), slot{units: b.Units, until: w.clock(n) + 100*counter.Millisecond, receipt: b.Receipt, age: b.Age})
	}
}

func (w *world) misdated(n *node, a *Call) {
	if w.mistake == datesByReply {
		a.sent = w.clock(n)
	}
}

func (w *world) mistaken(check *counter.Check) {
	if w.mistake == leasesUnpaid {
		check.Age = 0
	}
}

func (w *world) timesSent(check *counter.Check) int {
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

// TestTheModelNoticesMistakes makes each mistake in scenes that expose it. In these scenes, the
// usage must exceed what the algorithm allows. Without the mistake, the same scenes must not exceed
// it.
func TestTheModelNoticesMistakes(t *testing.T) {
	window := func(a counter.Algorithm) counter.Limit { return must(counter.NewLimit(a, 1000, counter.Second, 0)) }
	for _, tt := range []struct {
		name    string
		mistake mistake
		scene   scene
	}{
		{"what a lost answer granted is used", usesLost, scene{limit: window(counter.FixedWindow), lose: 0.2}},
		{"deadlines count from the reply, fixed", datesByReply, scene{limit: window(counter.FixedWindow), rtt: 50_000,
			traffic: traffic{shape: ramp}}},
		{"deadlines count from the reply, sliding", datesByReply, scene{limit: window(counter.SlidingWindow), rtt: 50_000}},
		{"a give-back is repeated, fixed", repeatsReturns, scene{limit: window(counter.FixedWindow), traffic: traffic{shape: idleBurst}}},
		{"a give-back is repeated, bucket", repeatsReturns, scene{limit: must(counter.NewLimit(counter.TokenBucket, 200, counter.Second, 4000)),
			traffic: traffic{shape: idleBurst, demand: 20}}},
		{"a give-back goes to the present window", returnsToNow, scene{limit: window(counter.FixedWindow), slow: 0.5, slowest: counter.Second,
			traffic: traffic{shape: idleBurst}}},
		{"what is given back is kept, fixed", keepsReturned, scene{limit: window(counter.FixedWindow), traffic: traffic{shape: idleBurst}}},
		{"what is given back is kept, sliding", keepsReturned, scene{limit: window(counter.SlidingWindow), traffic: traffic{shape: idleBurst}}},
		{"leases are not paid for", leasesUnpaid, scene{limit: must(counter.NewLimit(counter.TokenBucket, 10_000, counter.Second, 0)),
			traffic: traffic{shape: flash, demand: 5}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, noticed := tt.scene, 0
			s.nodes, s.lasts = 10, 4*counter.Second
			s.rtt, s.traffic.demand = max(s.rtt, 500), max(s.traffic.demand, 2)
			for seed := range uint64(5) {
				s.mistake = faithful
				w := newWorld(s, seed)
				if w.simulate(); w.excess() > 0 {
					t.Fatalf("seed %d: %d units over without the mistake", seed, w.excess())
				}
				s.mistake = tt.mistake
				w = newWorld(s, seed)
				if w.simulate(); w.excess() > 0 {
					noticed++
				}
			}
			if noticed < 3 {
				t.Errorf("noticed with %d seeds of 5", noticed)
			}
		})
	}
}
