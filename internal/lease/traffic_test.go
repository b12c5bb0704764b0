// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"math"
	"math/rand/v2"

	"github.com/penstock/penstock/core"
)

// shape is how requests come.
type shape uint8

const (
	poisson   shape = iota
	constant        // as regular as a clock, the nodes in turn
	bursty          // five times the rate for 100 ms of every 500
	flash           // a tenth of the rate, then suddenly all of it
	skewed          // most of it to one node
	ramp            // from nothing to twice the rate
	boundary        // all of it around the ends of windows
	hopping         // all of it to one node, to another every 50 ms
	idleBurst       // the same with as long a silence between
	handoff         // one node uses nearly all of the limit and falls silent; then the others come
	shapes
)

var shapeNames = [...]string{"poisson", "constant", "bursty", "flash", "skewed", "ramp", "boundary", "hopping", "idleBurst", "handoff"}

// traffic is requests of a shape, asking for demand times the limit, each for 1 to most units.
type traffic struct {
	shape  shape
	demand float64
	most   int64
}

const hop = 50 * core.Millisecond

// start returns what tells the requests one after the other: when, from the beginning of the scene, which node, what cost.
func (tr traffic) start(s *scene, rng *rand.Rand) func() (core.Micros, int, int64) {
	window := float64(s.limit.Window())
	if s.period > 0 {
		window = float64(s.period)
	}
	rate := tr.demand * float64(s.limit.Count()) / window * 2 / float64(1+max(1, tr.most))
	peak := map[shape]float64{bursty: 5, ramp: 2, boundary: 10}[tr.shape]
	peak = max(peak, 1)
	at, turn := 0.0, 0
	return func() (core.Micros, int, int64) {
		for {
			cost := int64(1)
			if tr.most > 1 {
				cost += rng.Int64N(tr.most)
			}
			if tr.shape == constant {
				at += 1 / rate
				turn++
				return core.Micros(at), turn % s.nodes, cost
			}
			at += rng.ExpFloat64() / (rate * peak)
			if at > float64(s.lasts) || rng.Float64()*peak <= tr.strength(at, window, float64(s.lasts)) {
				return core.Micros(at), tr.node(s, rng, at, window), cost
			}
		}
	}
}

// strength is the part of the rate that comes at an instant.
func (tr traffic) strength(at, window, lasts float64) float64 {
	switch part := math.Mod(at, window) / window; tr.shape {
	case bursty:
		if math.Mod(at, 500e3) >= 100e3 {
			return 0
		}
		return 5
	case flash:
		if at < 0.4*lasts {
			return 0.1
		}
	case ramp:
		return 2 * at / lasts
	case boundary:
		if part > 0.05 && part < 0.95 {
			return 0
		}
		return 10
	case idleBurst:
		if int64(at)/int64(hop)%2 == 1 {
			return 0
		}
	}
	return 1
}

func (tr traffic) node(s *scene, rng *rand.Rand, at, window float64) int {
	switch tr.shape {
	case skewed:
		return min(s.nodes-1, int(rng.ExpFloat64()*0.7))
	case hopping:
		return int(int64(at)/int64(hop)) % s.nodes
	case idleBurst:
		return int(int64(at)/int64(hop)/2) % s.nodes
	case handoff:
		if s.nodes > 1 && math.Mod(at, window) > 0.97*window/tr.demand {
			return 1 + rng.IntN(s.nodes-1)
		}
		return 0
	}
	return rng.IntN(s.nodes)
}
