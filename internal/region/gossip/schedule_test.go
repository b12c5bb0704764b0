// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/racescale"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestRegionsCountTogether simulates random schedules: messages are lost, repeated, late and out of
// order, agents are restarted, and a Redis loses its data. Each decision must equal that of an
// oracle, which decides by the region's own units and the greatest numbers that other regions have
// reported to it. So at each admission, all regions together exceed the limit by at most what the
// other regions have admitted without having reported it to this one. After one more exchange
// without faults, each region knows the units of all others.
func TestRegionsCountTogether(t *testing.T) {
	rng := seed.Random(t)
	for _, limit := range []string{"20/10s fixed_window", "20/10s sliding_window"} {
		w := newWorld(t, rng, limit, 3)
		messages := 0
		for range racescale.Fewer(60) {
			w.reset()
			w.now += 3 * w.limit.Window()
			w.skew(rng.IntN(2) == 0)
			w.simulate(rng.IntN(3) == 0)
			w.checkQuiet()
			messages += w.sent
		}
		t.Logf("%s: %d messages", limit, messages)
	}
}

// world.skew sets the clocks of the regions: either all are right, or each is wrong by up to a
// window.
func (w *world) skew(wrong bool) {
	for _, p := range w.places {
		if p.offset = 0; wrong {
			p.offset = counter.Micros(w.rng.Int64N(int64(w.limit.Window())))
		}
	}
}

// world.simulate simulates requests in some windows, and meanwhile messages with faults and
// restarts of agents. If flushes is true, a Redis sometimes loses its data.
func (w *world) simulate(flushes bool) {
	w.t.Helper()
	w.faults = true
	for range 120 {
		p := w.places[w.rng.IntN(len(w.places))]
		switch n := w.rng.IntN(100); {
		case n < 60:
			w.take(p, 1+w.rng.Int64N(3))
		case n < 85:
			w.tell(p)
		case n < 92 && len(w.late) > 0:
			at := w.rng.IntN(len(w.late))
			late := w.late[at]
			w.late = append(w.late[:at], w.late[at+1:]...)
			late()
		case n < 95:
			w.start(p)
		case n < 96 && flushes:
			w.flush(p)
			w.start(p)
		}
		w.now += counter.Micros(w.rng.Int64N(int64(w.limit.Window()) / 15))
	}
}

// world.checkQuiet checks that the regions know each other's units after messages arrive again. Two
// rounds of reports are enough: in the first round, a region may learn that another region has lost
// its data.
func (w *world) checkQuiet() {
	w.t.Helper()
	w.faults = false
	for range 2 {
		for _, p := range w.places {
			w.tell(p)
		}
	}
	for _, p := range w.places {
		now := w.now + p.offset
		start := now - now%w.limit.Window()
		for _, other := range w.places {
			if other == p || other.offset != p.offset {
				continue
			}
			if heard, own := p.heard[other.name][start], other.own[start]; heard < own {
				w.t.Fatalf("%s has heard of %d units of %s, which has %d", p.name, heard, other.name, own)
			}
		}
	}
	for _, p := range w.places {
		w.take(p, 1)
	}
}
